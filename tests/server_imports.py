"""What the servers of `server_process.py` have imported when they are forked: also what is imported only where it is used.

It stays, so that no server need look through it for garbage.
"""

import gc

import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
import uvicorn.lifespan.off
import uvicorn.loops.uvloop  # noqa: F401

import antiphon.cli
import antiphon.engines.llama_cpp
import antiphon.engines.scripted
import antiphon.engines.vllm
import antiphon.http.server
import antiphon.store.sql
import antiphon.store.sqlite
import antiphon.tools.web.fetch  # noqa: F401
from antiphon.apis.wire import prepare_types

prepare_types()
gc.freeze()
