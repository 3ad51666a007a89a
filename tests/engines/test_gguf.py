import pytest

from antiphon.core.errors import EngineError
from antiphon.engines.gguf import read_metadata
from antiphon.engines.models import resolve


def test_metadata_of_a_file():
    facts = read_metadata(resolve(None))
    assert facts["general.architecture"] == "llama"
    assert facts["llama.context_length"] == 8192
    assert facts["tokenizer.ggml.add_bos_token"] is False
    assert "tokenizer.ggml.tokens" not in facts


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(EngineError, match="Give the path of a GGUF file"):
        read_metadata(tmp_path / "none.gguf")


@pytest.mark.parametrize("size", [0, 3, 40, 5000, 10**6])
def test_a_broken_file_says_what_to_do(tmp_path, size):
    path = tmp_path / "broken.gguf"
    with resolve(None).open("rb") as whole:
        path.write_bytes(whole.read(size))
    with pytest.raises(EngineError, match="not a whole GGUF file"):
        read_metadata(path)
