"""What the formats that look like XML tolerate, beyond the contract that all dialects answer."""

import json
from functools import partial

import pytest

from antiphon.core.items import FunctionCall, Message, Reasoning
from antiphon.decode.table import Table
from antiphon.dialects.registry import find
from tests.contracts.dialect import TOOLS
from tests.counting import lines
from tests.laws import check, decode, fold

ROME = ("get_weather", {"city": "Rome"})
ROME_3 = ("get_weather", {"city": "Rome", "days": 3})
NOW = ("now", {})


def answer(name: str, text: str) -> list[object]:
    """The items of a text, short. Calls that are not whole are their arguments only."""
    table = Table(find(name).grammar)
    check(table, text, tools=TOOLS)
    short: list[object] = []
    for item in fold(decode(table, [text], tools=TOOLS)).items:
        match item:
            case Message() | Reasoning():
                short.append(item.text)
            case FunctionCall():
                whole = item.status == "completed"
                short.append((item.name, json.loads(item.arguments)) if whole else item.arguments)
    return short


@pytest.mark.parametrize(
    ("name", "text", "items"),
    [
        ("qwen3_coder", "<function=now>\n</function>", [NOW]),
        ("qwen3_coder", "<function=now</function>", [NOW]),
        ("qwen3_coder", "<tool_call><function=now></function><function=now></function></tool_call>", [NOW, NOW]),
        ("qwen3_coder", "<tool_call><function=now></tool_call>ok", [NOW, "ok"]),
        ("qwen3_coder", "<tool_call><function=now>\n<tool_call><function=now>\n", [NOW, "<tool_call><function=now>\n"]),
        ("qwen3_coder", "<function=get_weather>\n<parameter=city>\nRome\n<parameter=days>\n3\n</parameter>", ['{"city": "Rome", "days": 3']),
        ("qwen3_coder", "<function=get_weather>\n<parameter=city>\nRome\n</function>\n</tool_call>ok", [ROME, "ok"]),
        ("qwen3_coder", "<function=get_weather>\n<parameter=city>Rome</parameter>oops<parameter=days>3</parameter></function>", [ROME_3]),
        ("qwen3_coder", "<function=get_weather><parameter=city>\n\na\n\n</parameter></function>", [("get_weather", {"city": "\na\n"})]),
        ("mimo", "<function=get_weather><parameter=city>\na\n</parameter></function>", [("get_weather", {"city": "\na\n"})]),
        ("qwen3_coder", "<function=get_weather><parameter=city></parameter>", ['{"city": ""']),
        ("qwen3_coder", "<tool_call></tool_call>", ["<tool_call></tool_call>"]),
        ("qwen3_coder", "Write <function=name> first.", ["Write <function=name> first."]),
        ("qwen3_coder", "<think>a<tool_call><function=now></function></tool_call>b</think>c", ["a", NOW, "b", "c"]),
        ("mimo", "Write <function=name> first.", ["Write <function=name> first."]),
        ("seed_oss", "Write <function=name></function>.", ["Write <function=name></function>."]),
        ("seed_oss", "<seed:think>a<function=now></function>", ["a", NOW]),
        ("glm47", "<tool_call>now</tool_call><tool_call>\nnow\n</tool_call>", [NOW, NOW]),
        ("glm47", "<tool_call>get_weather<arg_key> city <arg_value>Rome</arg_value></tool_call>", [ROME]),
        ("glm47", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value><tool_call>now</tool_call>", [ROME, NOW]),
        ("hy_v4", "<tool_calls><tool_call>now</tool_call><tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call></tool_calls>", [NOW, ROME]),
        ("hy_v3", "<tool_calls></tool_calls>ok", ["ok"]),
        ("minimax_m2", "<minimax:tool_call><invoke name='get_weather'><parameter name=city>Rome</parameter></invoke><invoke name=now></invoke></minimax:tool_call>", [ROME, NOW]),
        ("minimax_m2", '<minimax:tool_call><invoke name="get_weather">\n<parameter name="city">Rome\n<parameter name="days">3</invoke>\n</minimax:tool_call>ok', [ROME_3, "ok"]),
        ("dots", '<dots_function_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</dots_function_call>ok', [ROME, "ok"]),
        ("dots", '<dots_function_call>[{"name": "now"}]</dots_function_call>', [NOW]),
        ("step3", '<｜tool_calls_begin｜><steptml:invoke name="now"></steptml:invoke><｜tool_calls_end｜>ok', [NOW, "ok"]),
        ("minicpm5", 'Write <function name="f"> first.', ['Write <function name="f"> first.']),
        ("minicpm5", '<functionname="get_weather"><paramname="city"><![CDATA[<a> & </param>]]></param></function>', [("get_weather", {"city": "<a> & </param>"})]),
        ("minicpm5", '<functionĠname="get_weather"><paramĠname="city">Rome</param></function>', [ROME]),
        ("minicpm5", '<functionĠname="get_weather"><paramĠname="city">NewĠYorkĊUSA</param><paramĠname="days">Ġ3</param></function>', [("get_weather", {"city": "New York\nUSA", "days": 3})]),
        ("minicpm5", '<functionĠname="get_weather"><param name="city">Ġgantija</param></function>', [("get_weather", {"city": "Ġgantija"})]),
        ("jamba", '<tool_calls>\n{"name": "now", "arguments": {}}\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_calls>ok', [NOW, ROME, "ok"]),
        ("minimax", '<tool_calls>{"name": "now", "arguments": {}}\n{no}</tool_calls>', [NOW, "{no}</tool_calls>"]),
        ("kimi_k3", "<|open|>response<|sep|>Hi<|close|>response<|sep|><|close|>message<|sep|>", ["Hi"]),
        ("kimi_k3", '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="it\'s &quot;&amp;&quot;" type="object"<|sep|>{"a": 1}<|close|>argument<|sep|><|close|>call<|sep|>', [("f", {'it\'s "&"': {"a": 1}})]),
        ("deepseek_v32", '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a">[1]</｜DSML｜parameter><｜DSML｜parameter name="b" string="false">x</｜DSML｜parameter></｜DSML｜invoke>', [("f", {"a": [1], "b": "x"})]),
        ("deepseek_v32", '<｜DSML｜function_calls><｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="arguments" string="false">{"city": "Rome", "days": 3}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>', [ROME_3]),
        ("deepseek_v4", '<｜DSML｜toolcalls><｜DSML｜invoke name="now"></｜DSML｜invoke></｜DSML｜toolcalls>ok', [NOW, "ok"]),
        ("deepseek_v4", '<｜DSML｜tool><｜DSML｜invoke name="now"></｜DSML｜invoke></｜DSML｜tool>ok', [NOW, "ok"]),
        ("muse_glimmer", " to=user<|message|>Hi<|eot|>", ["Hi"]),
        ("muse_glimmer", " to=self<|message|>hm<|start|>assistant to=user<|message|>Hi", ["hm", "Hi"]),
        ("muse_glimmer", ' to=a.b<|message|><atem:function_calls><atem:invoke name="a.b"><atem:parameter name="x">{"y": 1}</atem:parameter><atem:parameter name="z">007</atem:parameter></atem:invoke></atem:function_calls><|eom|>', [("a.b", {"x": {"y": 1}, "z": "007"})]),
        ("qwen3_coder", "<tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>", [NOW]),
        ("qwen3_coder", "<tool_call>\n<function=now\n</tool_call>ok", [NOW, "ok"]),
        ("qwen3_coder", "<function=now\n<function=get_weather\n<parameter=city>Rome</parameter></function>", [NOW, ROME]),
        ("qwen3_coder", "<function=get_weather>\n<parameter=city>\nRome\n</parameter\n<parameter=days>3</parameter\n</function>", [ROME_3]),
        ("qwen3_coder", "<tool_call> and <tool_call> are <tool_call>s", ["<tool_call> and <tool_call> are <tool_call>s"]),
        ("glm47", "<tool_call><tool_call>now</tool_call>", [NOW]),
        ("glm47", "<tool_call>now<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>", [NOW, ROME]),
        ("glm47", "<tool_call>get_weather<tool_call>city</arg_key><arg_value>Rome</arg_value><tool_call>days</arg_key>3</arg_value></tool_call>", [ROME_3]),
        ("glm47", "<tool_call>get_weather\ncity</arg_key>Rome</arg_value><arg_key>days</arg_key>3</arg_value></tool_call>", [ROME_3]),
        ("glm47", "<tool_call>nowhere</arg_value></tool_call>", ["<tool_call>nowhere</arg_value></tool_call>"]),
        ("glm47", "The <tool_call>name<tool_call> tags", ["The <tool_call>name<tool_call> tags"]),
        ("iquest_q1", "<iquest_tool_call>get_weather<iquest_tool_call>city</arg_key>Rome</arg_value></iquest_tool_call>", [ROME]),
        ("hy_v3", "<tool_calls><tool_calls><tool_call>now</arg_value></tool_call><tool_call>get_weathercity</arg_key>Rome</arg_value></tool_call></tool_calls>", [NOW, ROME]),
        ("deepseek_v4", '<|DSML|invoke name="get_weather" ><|DSML|parameter name="city" string="true">Rome</|DSML|parameter ></|DSML|invoke></|DSML|function_calls >ok', [ROME, "ok"]),
        ("deepseek_v41", '<｜｜DSML｜｜ calls><｜｜DSML｜｜ invoke name="now"></｜｜DSML｜｜ invoke></｜DSML｜ calls>', [NOW]),
        ("deepseek_v4", 'Write <｜DSML｜invoke name="f"> first.', ['Write <｜DSML｜invoke name="f"> first.']),
        ("gigachat35", '<｜｜GCML｜｜invoke name="now"></｜｜GCML｜｜invoke></｜GCML｜tool_calls>', [NOW]),
        ("kimi_k2", "<|tool_calls_section_begin|>I look: <|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>ok", [NOW, "ok"]),
        ("kimi_k2", '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"}<|tool_call_end|>', [("get_weather", {"city": "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"})]),
        ("kimi_k2", '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "R<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>', ['{"city": "R', NOW]),
        ("kimi_k2", '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "<|tool_call_begin|>' + "x" * 1000 + '"}<|tool_call_end|>', [("get_weather", {"city": "<|tool_call_begin|>" + "x" * 1000})]),
        ("kimi_k2", "All done.<|tool_calls_section_end|>", ["All done."]),
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "R<tool_call>{"name": "now"}</tool_call>', ['{"city": "R', NOW]),
        ("minimax_m3", "All done.]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>", ["All done.\n"]),
    ],
)  # fmt: skip
def test_formats(name: str, text: str, items: list[object]) -> None:
    assert answer(name, text) == items


INSIDE = "a</{0}>b</{0}>\n</{0}>\nc"
"""A value with the closing tag of its argument in it."""
VALUES = {
    "qwen3_coder": ("<tool_call>\n<function=get_weather>\n<parameter=city>\n{}\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "parameter"),
    "seed_oss": ("<seed:tool_call>\n<function=get_weather>\n<parameter=city>{}</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>", "parameter"),
    "mimo": ("<tool_call>\n<function=get_weather>\n<parameter=city>{}</parameter>\n<parameter=days>3</parameter>\n</function>\n</tool_call>", "parameter"),
    "glm45": ("<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{}</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>", "arg_value"),
    "hy_v3": ("<tool_calls><tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>{}</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call></tool_calls>", "arg_value"),
    "k2_horizon": ("<ifm|tool_call>get_weather<ifm|arg_key>city</ifm|arg_key><ifm|arg_value>{}</ifm|arg_value><ifm|arg_key>days</ifm|arg_key><ifm|arg_value>3</ifm|arg_value></ifm|tool_call>", "ifm|arg_value"),
    "minimax_m2": ('<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">{}</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>', "parameter"),
    "dots": ('<dots_function_call>\n<invoke name="get_weather">\n<parameter name="city">{}</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n</dots_function_call>', "parameter"),
    "step3": ('<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather"><steptml:parameter name="city">{}</steptml:parameter><steptml:parameter name="days">3</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>', "steptml:parameter"),
    "minicpm5": ('<function name="get_weather"><param name="city">{}</param><param name="days">3</param></function>', "param"),
    "muse_glimmer": (' to=a.b<|message|>\n<atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">{}</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>', "atem:parameter"),
    "deepseek_v4": ('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">{}</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>', "｜DSML｜parameter"),
    "minimax_m3": (']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>{}]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>', "city"),
}  # fmt: skip
"""A call whose first value is left open, and the tag that closes it. Solar Open's and Kimi K3's are tokens."""


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("inside", [INSIDE, "</{0}>", "</{0}></{0}>", "x\n</{0}>y"])
def test_a_closing_tag_inside_a_value_is_part_of_it(name: str, inside: str) -> None:
    text, tag = VALUES[name]
    value = inside.format(tag)
    assert answer(name, text.format(value)) == [("get_weather", {"city": value, "days": 3})]


@pytest.mark.parametrize("name", VALUES)
def test_text_between_arguments_is_skipped(name: str) -> None:
    text, tag = VALUES[name]
    close = (
        text[text.index("{}") + 2 :].partition(">")[0] + ">"
        if name != "minimax_m3"
        else f"]<]minimax[>[</{tag}>"
    )
    written = text.replace(close, f"{close}, and then: ", 1)
    assert answer(name, written.format("Rome")) == [ROME_3]


@pytest.mark.parametrize("name", ["glm45", "hy_v3", "qwen3_coder", "deepseek_v4"])
def test_a_marker_again_and_again_is_text_after_as_much_work_for_each(name: str) -> None:
    table = Table(find(name).grammar).compile()
    marker = next(iter(table.grammar.states["text"].on))  # type: ignore[union-attr]
    short, long = (lines(partial(decode, table, [marker * n], tools=TOOLS)) for n in (100, 400))

    assert long < 5 * short
