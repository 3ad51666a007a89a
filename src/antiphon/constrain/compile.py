"""Compiles the demands of a request into a grammar of the whole answer.

The entry point is `compile_constraint`. The result is written for an engine by `gbnf.write` or
`structural_tag.write`, or matched against the complete answer by `matcher` for engines that enforce nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from msgspec import Struct

from antiphon.constrain.analysis import validate, without_dead_ends, without_unused_rules
from antiphon.constrain.answer import AnswerGrammar
from antiphon.constrain.arguments import CallableFunction, UnsupportedSyntaxError
from antiphon.constrain.budget import LONGEST_ANSWER, TooMuchWorkError, WorkBudget
from antiphon.constrain.calls import CallGrammar
from antiphon.constrain.gbnf_parser import parse_gbnf
from antiphon.constrain.grammar_ir import Expr, GrammarIR, alternation
from antiphon.constrain.json_schema import compile_schema
from antiphon.constrain.matcher import Matcher
from antiphon.constrain.node_types import object_nodes
from antiphon.constrain.regex import client_regex
from antiphon.constrain.schema_ir import ANY_OBJECT, Object, SchemaIR
from antiphon.constrain.structural_tag_parser import parse_structural_tag
from antiphon.constrain.triggers import first_characters, with_free_text_before
from antiphon.constrain.value_syntax import JsonSyntax
from antiphon.core.constraint import Format, GrammarFormat, JsonObject, JsonSchema, OneOf, Regex, TagFormat
from antiphon.core.errors import RequestError
from antiphon.core.grammar import Grammar
from antiphon.core.turn import CallMode, Function, ToolChoice


class Unenforced(NamedTuple):
    """A keyword or demand that the engine cannot enforce, so that it must be checked afterwards.

    `param` is the part of the request, `tools[0].function.parameters`; `pointer` is the place in it as a
    JSON pointer, `/properties/age`; `what` names the keyword and the reason.
    """

    param: str
    pointer: str
    what: str

    def __str__(self) -> str:
        return f"{self.pointer or '(root)'}: {self.what}"


class OutputRequirements(Struct, frozen=True):
    """The demands on an answer: the part of a `Turn` that matters here.

    `state` is where the answer begins: None for the grammar's start, else the name of the state that the
    prompt leads to (`decode.decoder.start_after`). With `mid_text` it continues text of the prompt there.
    It has at most `longest` characters.
    """

    tools: tuple[Function, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    format: Format | None = None
    state: str | None = None
    longest: int = LONGEST_ANSWER
    mid_text: bool = False


class CompiledConstraint(Struct, frozen=True):
    """The compiled constraint on generation.

    `grammar_ir` is None if nothing is constrained. It describes the whole answer, reasoning and markup
    included, from its first character on; with `triggers`, the text from the first of these texts on, which
    it includes, and text before them is free. `unenforced` are the keywords and demands that `grammar_ir`
    does not cover, in the request's terms: they are checked when the answer is complete. Keywords of a
    strict schema are never among them: these are refused.
    """

    grammar_ir: GrammarIR | None = None
    triggers: tuple[str, ...] = ()
    unenforced: tuple[Unenforced, ...] = ()

    def after(self, prefix: str) -> "CompiledConstraint | None":
        """The constraint on the rest of an answer after `prefix`; None if that violates it."""
        if (whole := self.whole) is None or not self._is_triggered(prefix):
            return self
        matcher = Matcher(whole)
        if not matcher.feed(prefix):
            return None
        return CompiledConstraint(matcher.residual(), unenforced=self.unenforced)

    @property
    def whole(self) -> GrammarIR | None:
        """The grammar of the whole answer, with the free text before a trigger."""
        if self.grammar_ir is None or not self.triggers:
            return self.grammar_ir
        return with_free_text_before(self.grammar_ir, self.triggers)

    def _is_triggered(self, prefix: str) -> bool:
        """Whether the text contains a trigger, or ends with a prefix of one."""
        return not self.triggers or any(letter in prefix for letter in first_characters(self.triggers))


def compile_constraint(requirements: OutputRequirements, grammar: Grammar) -> CompiledConstraint:
    """The constraint for a model that writes in this grammar (`Dialect.grammar`). A pure function.

    Raises RequestError for strict demands that cannot be enforced, and for schemas that nothing matches. Its
    `param` is the `source` of a function, or `format`.
    """
    compiler = _Compiler(requirements, grammar)
    try:
        compiled = compiler.compiled()
    except UnsupportedSyntaxError as why:
        what = f"this model's format does not say {why}"
        return CompiledConstraint(unenforced=(Unenforced("tool_choice", "", what), *compiler.unenforced))
    if compiled.grammar_ir is None:
        return compiled
    grammar_ir = without_unused_rules(compiled.grammar_ir)
    validate(grammar_ir, "tools" if requirements.format is None else "format")
    grammar_ir = without_dead_ends(grammar_ir)
    return CompiledConstraint(grammar_ir, compiled.triggers, compiled.unenforced)


def format_grammar(requirements: OutputRequirements, format_: Format) -> GrammarIR:
    """The grammar of the visible text in the client's format. Raises RequestError."""
    compiler = _Compiler(requirements, Grammar({}))
    return GrammarIR(compiler.body(format_), compiler.rules)


class _Compiler:
    """Compiles the demands of one request."""

    def __init__(self, requirements: OutputRequirements, grammar: Grammar) -> None:
        self._requirements = requirements
        self._grammar = grammar
        self._choice = requirements.tool_choice
        self.rules: dict[str, Expr] = {}
        self._budget = WorkBudget(longest=requirements.longest)
        self.unenforced: list[Unenforced] = []

    def compiled(self) -> CompiledConstraint:
        offered = self._callable()
        must = self._choice.calling is CallMode.REQUIRED
        if must and not offered:
            raise RequestError("There is no function to call. Offer one.", param="tool_choice")
        if must and not self._writes_calls():
            must, what = False, "this model's format has no calls"
            self.unenforced.append(Unenforced("tool_choice", "", what))
        format_, calls = self._requirements.format, None
        if offered and self._writes_calls() and (must or format_ or self._constrains_calls(offered)):
            calls = self._calls(offered)
        body = None if must or format_ is None else self.body(format_)
        if body is None and calls is None:
            return CompiledConstraint(unenforced=(*self.unenforced,))
        answer = AnswerGrammar(self._grammar, calls, body, self.rules)
        if must or body is not None:
            demanded = answer.demanded(self._requirements.state, mid_text=self._requirements.mid_text)
            return self._whole(demanded, calls)
        triggers = answer.triggers()
        expr = answer.triggered(triggers) if triggers else answer.free(self._requirements.state)
        return self._whole(expr, calls, triggers)

    def _whole(
        self, expr: Expr, calls: CallGrammar | None, triggers: tuple[str, ...] = ()
    ) -> CompiledConstraint:
        if calls is not None:
            for tool in self._callable():
                self._unenforceable(
                    tool.source, [("", what) for what in calls.unenforced(tool.name)], tool.strict
                )
        unenforced = tuple(dict.fromkeys(self.unenforced))
        return CompiledConstraint(GrammarIR(expr, self.rules), triggers, unenforced)

    def _callable(self) -> list[Function]:
        """The functions that may be called."""
        if self._choice.calling is CallMode.NONE:
            return []
        names = self._choice.names
        return [tool for tool in self._requirements.tools if names is None or tool.name in names]

    def _writes_calls(self) -> bool:
        """Whether the model's format has calls at all."""
        return any(self._grammar.states.keys() - self._grammar.without_calls().states.keys())

    def _constrains_calls(self, offered: Sequence[Function]) -> bool:
        """Whether optional calls have to be constrained."""
        return self._choice.names is not None or self._choice.max_calls == 1 or any(f.strict for f in offered)

    def _calls(self, offered: Sequence[Function]) -> CallGrammar:
        functions = [
            CallableFunction(f.name, self._schema_ir(f), f.hosted is not None and f.hosted.native)
            for f in offered
        ]
        return CallGrammar(self._grammar, functions, self._choice.max_calls != 1, self.rules)

    def _schema_ir(self, tool: Function) -> SchemaIR:
        """The schema of a function's arguments: any object, if it is not enforced."""
        if not tool.parameters:
            return SchemaIR(Object())
        if not tool.strict and self._choice.calling is CallMode.AUTO:
            return SchemaIR(ANY_OBJECT)
        try:
            schema_ir, unenforced = compile_schema(tool.parameters, self._budget)
        except TooMuchWorkError:
            raise RequestError(_TOO_MUCH_WORK, param=tool.source) from None
        self._unenforceable(tool.source, unenforced, tool.strict)
        if not object_nodes(schema_ir.node, schema_ir.definitions):
            message = "No object fits this schema: a function's arguments are one."
            raise RequestError(message, param=tool.source)
        return schema_ir

    def body(self, format_: Format) -> Expr:
        """The visible text of an answer in the client's format."""
        try:
            expr, unenforced, strict = self._format(format_)
        except TooMuchWorkError:
            raise RequestError(_TOO_MUCH_WORK, param="format") from None
        self._unenforceable("format", unenforced, strict)
        return expr

    def _format(self, format_: Format) -> tuple[Expr, list[tuple[str, str]], bool]:
        """The text, the keywords that are not enforced, and whether these are errors."""
        rules, budget = self.rules, self._budget
        match format_:
            case JsonSchema(schema, strict):
                schema_ir, unenforced = compile_schema(schema, budget)
                syntax = JsonSyntax(rules, "format", schema_ir.definitions)
                return syntax.expr(schema_ir.node), unenforced, strict
            case JsonObject():
                return JsonSyntax(rules, "format", {}).expr(ANY_OBJECT), [], True
            case Regex(pattern):
                return client_regex(pattern, budget), [], True
            case OneOf(texts):
                budget.spend(len(texts))
                return alternation(*texts), [], True
            case GrammarFormat(text, "gbnf"):
                return parse_gbnf(text, rules, budget), [], True
            case GrammarFormat(_, syntax_name):
                message = f"Grammars in '{syntax_name}' are not supported: write GBNF."
                raise RequestError(message, param="format")
            case TagFormat(spec):
                return *parse_structural_tag(spec, rules, budget), True

    def _unenforceable(self, param: str, unenforced: list[tuple[str, str]], strict: bool | None) -> None:
        entries = [Unenforced(param, pointer, what) for pointer, what in unenforced]
        if strict and entries:
            refuse(entries)
        self.unenforced += entries


_TOO_MUCH_WORK = "This schema or grammar is too complex to be enforced. Make it smaller."
_REPORTED = 5
"""Keywords that an error names."""


def refuse(unenforced: Sequence[Unenforced]) -> NoReturn:
    """Raise the error for a strict schema with keywords that cannot be enforced."""
    listed = "; ".join(map(str, unenforced[:_REPORTED]))
    more = f"; and {len(unenforced) - _REPORTED} more" if len(unenforced) > _REPORTED else ""
    raise RequestError(
        f"This strict schema cannot be enforced completely: {listed}{more}. "
        "Change it, or set strict to false.",
        param=unenforced[0].param,
    )
