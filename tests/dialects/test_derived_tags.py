"""Formats of keys and values between tags are derived from templates, whatever their tags are called."""

from collections.abc import Mapping

import pytest

from antiphon.dialects.detection.detect import Detection, Evidence, detect
from antiphon.dialects.detection.samples import collect_samples
from antiphon.dialects.detection.scorers import round_trip_score
from antiphon.render.renderer import ChatTemplateRenderer
from tests.dialects.templates import THOUGHT, chatml

VALUE = "(value if value is string else value | tojson)"


def template(opening: str, pair: str, closing: str, before: str = "", after: str = "") -> str:
    """A template whose calls are `opening`, `pair` for each argument, `closing`; `before` and `after` all."""
    calls = (
        (f"{{%- if loop.first %}}{{{{- '{before}' }}}}{{% endif %}}" if before else "")
        + f"{{{{- {opening} }}}}"
        + f"{{%- for key, value in call.function.arguments.items() %}}{{{{- {pair} }}}}{{%- endfor %}}"
        + f"{{{{- {closing} }}}}"
        + (f"{{%- if loop.last %}}{{{{- '{after}' }}}}{{% endif %}}" if after else "")
    )
    return chatml(calls, THOUGHT.replace("think", "muse"))


NAME = "call.function.name"
KINDS = "('yes' if value is string else 'no')"
TEMPLATES: Mapping[str, str] = {
    "as GLM": template(
        f"'<use>' + {NAME} + '\\n'", f"'<k>' + key + '</k>\\n<v>' + {VALUE} + '</v>\\n'", "'</use>'"
    ),
    "as GLM on one line": template(
        f"'<use>' + {NAME}", f"'<k>' + key + '</k><v>' + {VALUE} + '</v>'", "'</use>'"
    ),
    "as Solar": template(
        f"'<|use:open|>' + {NAME} + '\\n'",
        f"'<|item:open|>' + key + '<|item:is|>' + {VALUE} + '<|item:close|>\\n'",
        "'<|use:close|>'",
    ),
    "in brackets": template(
        f"'[USE]' + {NAME}", f"'[KEY]' + key + '[VALUE]' + {VALUE} + '[/KEY]'", "'[/USE]'"
    ),
    "as Hunyuan": template(
        f"'<one>' + {NAME} + '<sep>\\n'",
        f"'<k>' + key + '</k>\\n<v>' + {VALUE} + '</v>\\n'",
        "'</one>'",
        before="<many>",
        after="</many>",
    ),
    "as Qwen3-Coder": template(
        f"'<use>\\n<fn=' + {NAME} + '>\\n'",
        f"'<arg=' + key + '>\\n' + {VALUE} + '\\n</arg>\\n'",
        "'</fn>\\n</use>'",
    ),
    "as MiniMax": template(
        f"'<run name=\"' + {NAME} + '\">\\n'",
        f"'<arg name=\"' + key + '\">' + {VALUE} + '</arg>\\n'",
        "'</run>\\n'",
        before="<runs>\\n",
        after="</runs>",
    ),
    "as DSML": template(
        f"'<｜XML｜run name=\"' + {NAME} + '\">\\n'",
        f"'<｜XML｜arg name=\"' + key + '\" text=\"' + {KINDS} + '\">' + {VALUE} + '</｜XML｜arg>\\n'",
        "'</｜XML｜run>\\n'",
        before="<｜XML｜runs>\\n",
        after="</｜XML｜runs>",
    ),
}


def found(name: str) -> Detection:
    return detect(Evidence(TEMPLATES[name]))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_dialect_is_derived_that_reads_all_that_is_rendered(name: str) -> None:
    detection = found(name)
    samples = collect_samples(ChatTemplateRenderer(TEMPLATES[name], bos="", eos="", tool_prompt=None))

    assert detection.name == "generic"
    assert detection.unmatched
    assert len(samples.calls) > 3
    assert round_trip_score(samples.answers, detection.dialect) == 1
