"""Reads calls written as JSON with the function's name as the key: `{"get_weather": {"city": "Rome"}}`."""

from antiphon.core.grammar import JsonCalls, KeyedCalls, Names
from antiphon.decode.json_calls import JsonCallsReader
from antiphon.decode.lexer import Lexer
from antiphon.decode.sink import Sink


class KeyedCallsReader(JsonCallsReader):
    """Reads one JSON value made of calls; each key is a call, and its value the arguments."""

    def __init__(self, state: KeyedCalls, closers: Lexer, sink: Sink) -> None:
        super().__init__(JsonCalls(state.then, names=state.names), closers, sink)

    def _take_key(self, key: str) -> bool:
        if not key or (self._state.names is Names.DECLARED and not self._sink.declares(key)):
            return False
        self._called = True
        self._sink.call(key)
        return True

    def _is_arguments(self, key: str) -> bool:
        return True

    def _next_key(self) -> None:
        self._sink.begin_call(None)
        self._begin_object()
