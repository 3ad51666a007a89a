"""Which versions of vLLM the engine takes, and what differs between them."""

import asyncio
import inspect
import os
from importlib import import_module
from types import SimpleNamespace

import pytest

from antiphon.core.chunks import FinishReason
from antiphon.core.errors import EngineError, EngineNotReadyError
from antiphon.engines import vllm_versions
from antiphon.engines.vllm import Options
from antiphon.engines.vllm_versions.version import VllmVersion, known, version_for
from tests.contracts.engine import Collected, chunks_of, finish_of, request_of, text_of, until
from tests.engines import fake_vllm
from tests.engines.fake_vllm import EngineCoreOutput

VERSIONS = [".".join(map(str, version)) for version in known()]


def module_of(version):
    return import_module(f"{vllm_versions.__name__}.v{version.replace('.', '_')}")


@pytest.fixture(params=VERSIONS)
def installed(monkeypatch, request):
    monkeypatch.setattr(os, "environ", {**os.environ})
    fake_vllm.install(monkeypatch, version=f"{request.param}.0")
    return request.param


def test_the_two_newest_are_known():
    assert VERSIONS == ["0.32", "0.33"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_module_has_what_the_protocol_names(version):
    expected = {name: method for name, method in vars(VllmVersion).items() if name[0] != "_"}
    for name, method in expected.items():
        parameters = [*inspect.signature(method).parameters][1:]
        assert [*inspect.signature(getattr(module_of(version), name)).parameters] == parameters


@pytest.mark.parametrize("more", ["", ".0", ".1rc2", ".1.dev3+g0123456.cpu", "rc1"])
@pytest.mark.parametrize("version", VERSIONS)
def test_all_builds_of_a_version_are_taken(version, more):
    assert version_for(version + more, untested=False) is module_of(version)


@pytest.mark.parametrize(
    ("strange", "nearest"), [("0.31.2", "0.32"), ("0.34.0", "0.33"), ("1.0.0", "0.33"), ("dev", "0.33")]
)
def test_a_version_that_is_not_known_is_refused_unless_it_is_to_be_tried(strange, nearest, caplog):
    with pytest.raises(EngineError) as refused:
        version_for(strange, untested=False)
    for remedy in (strange, *VERSIONS, "pip install 'vllm>=0.32,<0.34'", "--vllm-untested", "vllm serve"):
        assert remedy in refused.value.message
    assert version_for(strange, untested=True) is module_of(nearest)


def test_the_engine_asks_for_the_version(monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ})
    fake_vllm.install(monkeypatch, version="0.34.0")
    with pytest.raises(EngineError, match="--vllm-untested"):
        Options("org/model").build()
    assert Options("org/model", vllm_untested=True).build()


async def test_media_that_the_core_has_dropped_are_sent_again(installed):
    engine = Options("org/model").build()
    await engine.start()
    try:
        llm = fake_vllm.AsyncLLM.last
        dropped = EngineCoreOutput(new_token_ids=[], finish_reason="error", mm_cache_miss_hashes=["f", "00"])
        llm.engine_core.script = [dropped]
        chunks = await chunks_of(engine, "a", 3)
        assert (text_of(chunks), finish_of(chunks).reason) == ("bcd", FinishReason.LENGTH)
        assert llm.renderer.forgotten == ["f", "00"]
        llm.engine_core.script = [dropped, dropped]
        with pytest.raises(EngineError):  # once
            await chunks_of(engine, "a", 3)
        assert engine.load.idle
    finally:
        await engine.stop()


@pytest.mark.parametrize("installed", ["0.33"], indirect=True)
@pytest.mark.parametrize("ends", ["cancelled", "stopped"])
async def test_a_request_that_is_sent_again_ends_as_any_other(installed, ends):
    engine = Options("org/model").build()
    await engine.start()
    llm, stops = fake_vllm.AsyncLLM.last, []
    core = llm.engine_core

    def drop(hashes):
        core.held = True  # the second request gets no output
        if ends == "stopped":  # in the turn in which it is sent again
            stops.append(asyncio.ensure_future(engine.stop()))
        llm.renderer.forgotten += hashes

    llm.renderer.queue_mm_cache_invalidations = drop
    core.script = [EngineCoreOutput(new_token_ids=[], finish_reason="error", mm_cache_miss_hashes=["f"])]
    receiver = Collected()
    work = engine.generate(await request_of(engine, "a", 3), receiver)
    await until(lambda: llm.renderer.forgotten)
    if ends == "cancelled":
        await until(lambda: core.requests)
        work.cancel()
        await until(lambda: core.aborted)
        assert engine.load.idle
        await engine.stop()
    else:
        with pytest.raises(EngineNotReadyError):
            await receiver.whole()
        await asyncio.gather(*stops)


@pytest.mark.parametrize(("version", "appended"), [("0.32", []), ("0.33", [7])])
def test_what_follows_a_pair_is_appended_once(version, appended):
    def post_process_tokens(prompt):
        prompt["prompt_token_ids"].append(7)

    model = SimpleNamespace(post_process_tokens=post_process_tokens)
    processor = SimpleNamespace(
        model=model,
        get_score_prompt=lambda query, document, _: (query + document, {"prompt_token_ids": [1, 2]}),
    )
    assert module_of(version).pair(processor, "a", "b")["prompt_token_ids"] == [1, 2, *appended]


def test_a_beam_is_as_long_as_that_version_counts():
    assert module_of("0.32").beam_length(5, 3, ended=True) == 7
    assert module_of("0.33").beam_length(5, 3, ended=True) == 3
    assert module_of("0.33").beam_length(5, 3, ended=False) == 3
