"""Compiles and renders Jinja chat templates, which are untrusted.

Templates come with model files, and some are broken or malicious. They run in
jinja2's immutable sandbox, which denies access to Python internals, and under a
`Meter`, which limits CPU time and memory. For the second, the parsed template is
rewritten once (`_Metering`) so that everything that takes time or memory passes
through a function of this module: operators and calls (which jinja2 lets a
sandbox intercept), filters, tests and printed pieces (which are wrapped), and
loops, slices, literals, concatenations and comparisons (which become filters
whose names no template can write). Each passes its result to `Meter.charge`.

Templates have the globals and filters of Hugging Face, except for filters that
produce HTML or random output.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from antiphon.core.errors import EngineError, RequestError
from antiphon.render import bounds
from antiphon.render.meter import SHORT, LimitError, Meter

MAX_SOURCE = 2**18
"""The longest template source, in characters: five times the longest known one."""

MAX_NODES = 20_000
"""The most nodes of a parsed template: four times as many as the longest known one has.

To compile one takes up to 20 µs for each, in which no other thread runs.
"""

MAX_INDENT = 16
"""The widest indentation and the longest separators that `tojson` takes, in characters."""

MAX_LAYOUT = 256
"""The longest layout that `strftime_now` takes, in characters."""

MAX_CAUSE = 200
"""The most characters of the reason why a template failed."""

MAX_REFUSAL = 4096
"""The most characters of what a template says of a conversation that it refuses."""

_MODULES = re.compile(r"(?<![\w.])(?:\w+\.)+_?(?=\w+ object)")
_NOT_OFFERED = ("filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
# They amplify their input, and have no use in a prompt.
_FORBIDDEN_METHODS = frozenset({"encode", "from_bytes", "maketrans", "to_bytes", "translate"})
_CHEAP_TESTS = frozenset({
    "boolean", "callable", "defined", "divisibleby", "escaped", "even", "false", "filter", "float",
    "integer", "iterable", "mapping", "none", "number", "odd", "sameas", "sequence", "string", "test",
    "true", "undefined",
})  # fmt: skip

_DICT_ATTRIBUTES = frozenset(dir(dict))
_TEXT_METHODS = frozenset(
    name
    for name in dir(str)
    # `_Environment` refuses the first, and jinja2 wraps the others.
    if not name.startswith("_") and name not in {*_FORBIDDEN_METHODS, "format", "format_map"}
)
_LOOP_ATTRIBUTES = frozenset({
    "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex",
    "revindex0",
})  # fmt: skip

_ITERATE, _SLICE, _LITERAL = "(iterate)", "(slice)", "(literal)"
_CONCAT, _COMPARED, _ARGS, _SUM = "(concat)", "(compared)", "(args)", "(sum)"


class RefusedError(TemplateError):
    """The template called `raise_exception`, with a message about the conversation."""


class Template:
    """A compiled chat template. Raises `EngineError`, with the line, if `source` is not a template."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise EngineError(f"The chat template is longer than {MAX_SOURCE} characters.")
        try:
            parsed = _ENVIRONMENT.parse(source)
            if sum(1 for _ in parsed.find_all(nodes.Node)) > MAX_NODES:
                raise EngineError(f"The chat template has more than {MAX_NODES} expressions and statements.")
            self._template = _ENVIRONMENT.from_string(_Metering().visit(parsed))
        except TemplateSyntaxError as error:
            message = f"The chat template has an error in line {error.lineno}: {error.message}"
            raise EngineError(message) from error
        except (MemoryError, RecursionError, SyntaxError, ValueError) as error:
            raise EngineError("The chat template is nested too deeply.") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text, or `RequestError` on `messages` if the template fails on these variables.

        A template that compiles and renders other conversations fails because of this one, so it is the
        client's error. The message is the template's own if it called `raise_exception`; else it says which
        name the template does not know, or which value has another type than it expects.
        """
        try:
            template = self._template
            # `Template.new_context` does the same in twice the time.
            context = _Context(_ENVIRONMENT, {**_GLOBALS, **variables}, None, template.blocks)
            context.meter = Meter(variables)
            text = "".join(template.root_render_func(context))
            text.encode()  # half a surrogate pair is no text: `from_json` makes one of an escape
        except RefusedError as error:
            raise RequestError(error.message, param="messages") from error
        except (LimitError, MemoryError, RecursionError, OverflowError) as error:
            message = "The model's chat template needs too much time or memory for this conversation. "
            message += "Send fewer or shorter messages."
            raise RequestError(message, param="messages") from error
        except Exception as error:
            message = f"The model's chat template cannot render this conversation{_cause(error)}."
            raise RequestError(message, param="messages") from error
        return text


def _cause(error: Exception) -> str:
    """What a template does not know, or takes for another type; nothing of this program."""
    if not isinstance(error, TemplateError | TypeError):
        return ""
    return f": {_MODULES.sub('', str(error))[:MAX_CAUSE].rstrip('.')}"


class _Context(Context):
    """The variables of one rendering, and its meter."""

    meter: Meter

    def derived(self, locals: dict[str, Any] | None = None) -> Context:  # noqa: A002
        context = super().derived(locals)
        context.meter = self.meter  # type: ignore[attr-defined]
        return context


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a meter."""

    context_class = _Context
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter: Meter = context.meter  # type: ignore[attr-defined]
        if bound := bounds.OPERATORS.get(operator):
            meter.require(bound(meter, left, right))
        return meter.charge(self.binop_table[operator](left, right))

    # Positional-only, because a template may use any name for keyword arguments.
    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        meter: Meter = context.meter  # type: ignore[attr-defined]
        # `str.format` is wrapped already, see `wrap_str_format` in jinja2.
        method = getattr(function, "__wrapped__", function)
        subject = getattr(method, "__self__", None)
        if isinstance(subject, (str, bytes)) and (bound := bounds.METHODS.get(method.__name__)):
            args = tuple(meter.collect(arg) if _is_lazy(arg) else arg for arg in args)
            meter.require(bound(meter, subject, *args, **kwargs))
        return meter.charge(super().call(context, function, *args, **kwargs))

    def getattr(self, obj: Any, attribute: str) -> Any:
        # Templates mostly look up keys of messages: this way jinja2 need not catch errors first.
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else Undefined(None, obj, attribute)
        # These are numbers and messages, or methods that cannot change their text.
        if type(obj) is str and attribute in _TEXT_METHODS:
            return getattr(obj, attribute)
        if type(obj) is LoopContext and attribute in _LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        # Some templates look at all earlier messages for each of them. The content of a namespace has passed
        # the sandbox, except its own attributes, whose names begin with an underscore.
        if type(obj) is _Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _FORBIDDEN_METHODS and super().is_safe_attribute(obj, attr, value)


class _Metering(NodeTransformer):
    """Rewrites a parsed template, see the module's docstring."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _ITERATE)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _filtered(node.dyn_args, _ARGS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # `a + b + c` is one operation: most of the time of a rendering is for joining texts.
        first, terms = node.left, [node.left]
        if isinstance(first, nodes.Filter) and first.name == _SUM and isinstance(first.node, nodes.List):
            terms = first.node.items
        return _filtered(nodes.List([*terms, node.right], lineno=node.lineno), _SUM)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return _filtered(node.node, _SLICE, [end or nodes.Const(None) for end in ends])

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if _is_constant(node) else _filtered(node, _LITERAL)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if _is_constant(node) else _filtered(node, _LITERAL)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx != "load" or _is_constant(node) else _filtered(node, _LITERAL)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if _is_quick(node) else _filtered(node, _COMPARED)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        # A printed constant passes `finalize`, so that text in a loop is counted, too.
        return nodes.Const(node.data, lineno=node.lineno)


def _filtered(node: nodes.Node, name: str, args: list[nodes.Expr] | None = None) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    made = nodes.Filter(node, name, args or [], [], None, None, lineno=node.lineno)
    made.environment = _ENVIRONMENT  # without it, `as_const` raises RuntimeError
    return made


def _is_constant(node: nodes.Expr) -> bool:
    try:
        node.as_const()
    except nodes.Impossible:
        return False
    return True


def _is_quick(node: nodes.Compare) -> bool:
    """Whether a comparison takes negligible time, as nearly all do: one operand is a constant."""
    operands = [node.expr, *(operand.expr for operand in node.ops)]
    return all(map(_is_quick_pair, operands[:-1], operands[1:], [operand.op for operand in node.ops]))


def _is_quick_pair(left: nodes.Expr, right: nodes.Expr, operator: str) -> bool:
    # `constant in long` searches all of `long`.
    searches = operator in ("in", "notin")
    return _is_constant(right) or (not searches and _is_constant(left))


def _is_lazy(value: Any) -> bool:
    return hasattr(type(value), "__next__")


class _GenerationTag(Extension):
    """`{% generation %}` marks the text to train on. For a prompt it has no effect."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """A namespace whose `repr` has no contents: they are mutable, so their weight is unknown."""

    def __repr__(self) -> str:
        return "<Namespace>"


@pass_context
def _namespace(context: _Context, /, *args: Any, **kwargs: Any) -> _Namespace:
    return _Namespace(context.meter.charge(dict(*args, **kwargs)))


@pass_context
def _tojson(  # noqa: PLR0913, PLR0917 - the arguments are those of Hugging Face
    context: _Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `transformers` writes it into prompts: plain text, with nothing escaped for HTML."""
    longest = max((bounds.size(part) for part in (indent, *(separators or ())) if part), default=0)
    if longest > MAX_INDENT:
        raise LimitError(f"an indentation or separator of {longest}")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        return encoder.encode(value)
    # Indentation grows with the depth, so the text is counted piece by piece.
    return "".join(map(context.meter.printed, encoder.iterencode(value)))


def _raise_exception(message: str) -> NoReturn:
    raise RefusedError(str(message)[:MAX_REFUSAL].encode(errors="replace").decode())


def _strftime_now(layout: str) -> str:
    if len(layout) > MAX_LAYOUT:
        raise LimitError(f"a date layout of {len(layout)}")
    return datetime.now().strftime(layout)


def _metered(function: Callable[..., Any], bound: bounds.Bound | None = None) -> Callable[..., Any]:
    """A filter or test with a check before it runs, and a count of its result."""
    pass_arg = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @pass_context
    @wraps(function)
    def metered(context: _Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = context.meter
        if _is_lazy(value):
            value = meter.charge(meter.collect(value))
        if bound is not None:
            meter.require(bound(meter, value, *args, **kwargs))
        if pass_arg is None:
            return meter.charge(function(value, *args, **kwargs))
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        return meter.charge(function(first[pass_arg], value, *args, **kwargs))

    return metered


@pass_context
def _iterate(context: _Context, value: Iterable[Any]) -> Iterator[Any]:
    return context.meter.iterate(value)


@pass_context
def _args(context: _Context, value: Iterable[Any]) -> list[Any]:
    return context.meter.collect(value)


@pass_context
def _slice(context: _Context, value: Any, *ends: int | None) -> Any:
    return context.meter.charge(value[slice(*ends)])


@pass_context
def _charged(context: _Context, value: Any) -> Any:
    return context.meter.charge(value)


@pass_context
def _concat(context: _Context, value: list[Any]) -> Any:
    meter = context.meter
    # Not the list itself: the meter keeps weighed objects alive, and this list is temporary.
    meter.require(sum(map(meter.weigh, value)))
    return meter.charge("".join(map(str, value)))


@pass_context
def _sum(context: _Context, terms: list[Any]) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
        if type(total) is not str or len(total) > SHORT:
            context.meter.charge(total)
    return total


@pass_context
def _printed(context: _Context, value: Any) -> str:
    return context.meter.printed(value if type(value) is str else str(value))


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, LoopControlExtension],
        finalize=_printed,
    )
    environment.globals.pop("lipsum")
    environment.globals |= {
        "namespace": _namespace,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    for name in _NOT_OFFERED:
        del environment.filters[name]
    environment.filters |= {"tojson": _tojson, "from_json": json.loads}
    filters: Mapping[str, Any] = environment.filters
    metered = {name: _metered(function, bounds.FILTERS.get(name)) for name, function in filters.items()}
    rewritten = {_ITERATE: _iterate, _SLICE: _slice, _CONCAT: _concat, _ARGS: _args, _SUM: _sum}
    environment.filters = {**metered, **rewritten, _LITERAL: _charged, _COMPARED: _charged}
    tests: Mapping[str, Any] = environment.tests
    environment.tests |= {name: _metered(test) for name, test in tests.items() if name not in _CHEAP_TESTS}
    return environment


_ENVIRONMENT = _environment()
_GLOBALS = dict(_ENVIRONMENT.globals)
