from random import Random

import pytest

from antiphon.core.errors import EngineError
from antiphon.engines.gguf import check_whole, parts_size, read_metadata, sampling_of
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
    with pytest.raises(EngineError, match="not a complete GGUF file"):
        read_metadata(path)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_a_file_that_is_cut_off_is_not_whole(tmp_path, share):
    whole = resolve(None)
    check_whole(whole)
    path = tmp_path / "cut.gguf"
    with whole.open("rb") as file:
        path.write_bytes(file.read(int(whole.stat().st_size * share)))
    with pytest.raises(EngineError, match="not a complete GGUF file"):
        check_whole(path)


def test_broken_files_are_told_by_their_own_error(tmp_path, shallow_model):
    path, rng = tmp_path / "broken.gguf", Random(7)
    head = shallow_model.read_bytes()[:4000]
    for _ in range(300):
        damaged = bytearray(head)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(400)] = rng.choice((0, 9, 255, rng.randrange(256)))
        path.write_bytes(damaged)
        with pytest.raises(EngineError):
            check_whole(path)


def test_the_sampling_that_the_makers_recommend():
    facts = {
        "general.sampling.temp": 0.6000000238418579,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.0499999523162842,
        "general.sampling.sequence": "ktp",
        "general.name": "x",
    }
    assert sampling_of(facts) == {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05}
    assert sampling_of(read_metadata(resolve(None))) == {}


def test_the_size_of_a_model_is_that_of_all_its_parts(tmp_path):
    for number, size in enumerate((5, 7), 1):
        (tmp_path / f"m-{number:05}-of-00002.gguf").write_bytes(bytes(size))
    assert parts_size(tmp_path / "m-00001-of-00002.gguf") == 12
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(EngineError, match="m-00002-of-00002"):
        parts_size(tmp_path / "m-00001-of-00002.gguf")
