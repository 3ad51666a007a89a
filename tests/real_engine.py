"""An engine with a real model: SmolLM2, on llama.cpp, or on vLLM where `make test-vllm` runs the tests."""

import os
from collections.abc import Sequence

from antiphon.engines import llama_cpp
from antiphon.engines.engine import Engine
from antiphon.engines.llama_cpp import LlamaCppEngine
from antiphon.engines.models import resolve
from antiphon.engines.vllm import Options

VLLM_MODEL = os.environ.get("ANTIPHON_TEST_VLLM", "")
"""Where the model is for vLLM, see `engines/vllm_setup.py`."""

VLLM_ARGUMENTS = ("dtype=bfloat16", "enforce_eager=true", "gpu_memory_utilization=0.3")
"""What makes vLLM start soon, and leave memory to others."""


def real_engine(*, context: int, slots: int, more: Sequence[str] = ()) -> Engine:
    """An engine that answers so many requests at a time; vLLM gets `more` arguments."""
    if VLLM_MODEL:
        return Options(VLLM_MODEL, context=context, parallel=slots, vllm=(*VLLM_ARGUMENTS, *more)).build()
    options = llama_cpp.Options(context=context, parallel=slots)
    return LlamaCppEngine(resolve(None), options)
