"""Answers as gpt-oss models write them, well and badly, and what a client is to see of each."""

from tests.http.harmony import ANALYSIS, CALL, FINAL, PREAMBLE, ROME, START, Answer, written

CALLED = [("get_weather", ROME)]
NOW = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
EVERYTHING = written(f"{ANALYSIS}Hm.", f"{PREAMBLE}Wait.", f"{CALL}{ROME}<|call|>{START}{FINAL}Done.")

CASES: dict[str, tuple[str, Answer]] = {
    "an answer": (written(f"{FINAL}Hi."), Answer("", "Hi.")),
    "a thought": (written(f"{ANALYSIS}Hm.", f"{FINAL}Hi."), Answer("Hm.", "Hi.")),
    "two thoughts": (written(f"{ANALYSIS}A.", f"{ANALYSIS}B.", f"{FINAL}Hi."), Answer("A.\n\nB.", "Hi.")),
    "a preamble": (
        written(f"{PREAMBLE}Wait.", f"{CALL}{ROME}", end="<|call|>"),
        Answer("", "Wait.", CALLED, "tool_calls"),
    ),
    "everything": (EVERYTHING, Answer("Hm.", "Wait.\n\nDone.", CALLED, "tool_calls")),
    "two calls": (
        f"{CALL}{ROME}<|call|>{START} to=functions.now<|channel|>commentary json<|message|>{{}}<|call|>",
        Answer("", "", [*CALLED, ("now", "{}")], "tool_calls"),
    ),
    "no end": (written(f"{ANALYSIS}Hm.", f"{FINAL}Hi.", end=""), Answer("Hm.", "Hi.")),
    "a call without an end": (f"{CALL}{ROME}", Answer("", "", CALLED, "tool_calls")),
    "an answer that ends like a call": (written(f"{FINAL}Hi.", end="<|call|>"), Answer("", "Hi.")),
    "a call that ends like an answer": (written(f"{CALL}{ROME}"), Answer("", "", CALLED, "tool_calls")),
    "nothing": ("", Answer()),
    "only a thought": (written(f"{ANALYSIS}Hm."), Answer("Hm.")),
    "an unknown channel": ("<|channel|>whisper<|message|>Hi.<|return|>", Answer("", "Hi.")),
    "no channel": (f"<|message|>Hi.<|end|>{START}<|message|>You.<|return|>", Answer("", "Hi.\n\nYou.")),
    "no header": ("There is no format here.", Answer("", "There is no format here.")),
    "a token in prose": (written(f"{FINAL}The <|start|> of it."), Answer("", "The  of it.")),
    "a header that is none": (f"{FINAL}Hi.<|end|><|start|>no header", Answer("", "Hi.\n\nno header")),
    "an unknown recipient": (
        f"<|channel|>analysis to=someone<|message|>Hm.<|end|>{START}{FINAL}Hi.",
        Answer("Hm.", "Hi."),
    ),
}

UNOFFERED: dict[str, tuple[str, Answer]] = {
    "a program": (
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        Answer("", "", [("python", '{"code": "print(1)"}')], "tool_calls"),
    ),
    "a search": (
        '<|channel|>analysis to=browser.search code<|message|>{"query": "x"}<|call|>',
        Answer("", "", [("browser.search", '{"query": "x"}')], "tool_calls"),
    ),
    "a box": (
        '<|channel|>commentary to=container.exec json<|message|>{"cmd": ["ls"]}<|call|>',
        Answer("", "", [("container.exec", '{"cmd": ["ls"]}')], "tool_calls"),
    ),
    "a function": (
        "<|channel|>commentary to=functions.fly json<|message|>{}<|call|>",
        Answer("", "", [("fly", "{}")], "tool_calls"),
    ),
}
"""Calls of functions that are not offered: they are shown, for the client to run or to refuse."""

HEADERS = [
    f"{header}{type_}"
    for name in ("commentary", "analysis", "final")
    for header in (
        f"<|channel|>{name} to=functions.get_weather",
        f" to=functions.get_weather<|channel|>{name}",
        f"<|channel|>{name} to=get_weather",  # bare
        f" to=functions.get_weather<|channel|>{name}<|channel|>commentary",  # polluted
        f"<|channel|>{name} to=functions.get_weather<|constrain|>",
    )
    for type_ in (" <|constrain|>json", "<|constrain|>json", " json", " code", "")
]
