"""Traces: a span for each request, and within it one for each generation and each call of a tool.

They are sent to the OTLP endpoint that the operator configures, under the names of OpenTelemetry's
conventions for HTTP and for generative AI. While an answer is running, only the span of the request exists:
those of generations and calls are made afterwards, from the observation. They never contain prompts or
answers.

Without an endpoint, the headers of W3C Trace Context of a request are passed on unchanged to engines on
other servers; with one, the spans of those servers become children of the request's span.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from antiphon import __version__
from antiphon.core.observation import (
    Observation,
    ObservedCall,
    ObservedDecision,
    ObservedGeneration,
    unix_nanoseconds,
)

_SERVER_ERROR = 500


class OpenTelemetryTracing:
    """Sends spans by OpenTelemetry. See `Tracing`."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({"service.name": "antiphon", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("antiphon", __version__)
        self._headers = TraceContextTextMapPropagator()

    def begin(self, observation: Observation, name: str) -> None:
        span = self._tracer.start_span(
            name,
            context=self._headers.extract(observation.trace),
            kind=SpanKind.SERVER,
            start_time=unix_nanoseconds(observation.started),
        )
        passed_on: dict[str, str] = {}
        self._headers.inject(passed_on, set_span_in_context(span))
        observation.span, observation.trace = span, passed_on

    def end(self, observation: Observation, known: Mapping[str, object]) -> None:
        span = observation.span
        if span.is_recording():
            for name, value in _request(observation, known):
                span.set_attribute(name, value)
            if "route" in known:
                span.update_name(f"{known['method']} {known['route']}")
            if observation.failure is not None or int(str(known.get("status", 0))) >= _SERVER_ERROR:
                span.set_status(StatusCode.ERROR)
            context = set_span_in_context(span)
            for generation in observation.generations:
                attributes = dict(_generation(observation, generation))
                self._add(f"chat {generation.model}", generation, attributes, context)
            if (decision := observation.decision) is not None:
                self._add(
                    f"decide {decision.model}", decision, dict(_decision(observation, decision)), context
                )
            for call in observation.calls:
                self._add(f"execute_tool {call.action}", call, dict(_call(call)), context)
        span.end()

    def _add(
        self,
        name: str,
        observed: ObservedGeneration | ObservedDecision | ObservedCall,
        attributes: dict[str, Any],
        context: Any,
    ) -> None:
        """Add a span for a finished generation, decision or call."""
        span = self._tracer.start_span(
            name, context=context, attributes=attributes, start_time=unix_nanoseconds(observed.started)
        )
        if "error.type" in attributes:
            span.set_status(StatusCode.ERROR)
        span.end(unix_nanoseconds(observed.ended))

    def close(self) -> None:
        self._provider.shutdown()


def exporting(endpoint: str) -> OpenTelemetryTracing:
    """Sends spans to an OTLP endpoint over HTTP, in batches, from a thread of its own."""
    url = endpoint if "/v1/traces" in endpoint else endpoint.rstrip("/") + "/v1/traces"
    return OpenTelemetryTracing(BatchSpanProcessor(OTLPSpanExporter(url)))


def _request(observation: Observation, known: Mapping[str, object]) -> Iterable[tuple[str, Any]]:
    """The attributes of the span of a request."""
    yield "antiphon.request.id", observation.request_id
    names = {"method": "http.request.method", "route": "http.route", "status": "http.response.status_code"}
    for field, attribute in names.items():
        if field in known:
            yield attribute, known[field]
    if observation.moderations:
        yield (
            "antiphon.moderation.outcomes",
            [f"{one.subject} {one.outcome}" for one in observation.moderations],
        )
        yield "antiphon.moderation.tokens", sum(one.tokens for one in observation.moderations)
    if observation.failure is not None:
        yield "error.type", observation.failure


def _generation(observation: Observation, generation: ObservedGeneration) -> Iterable[tuple[str, Any]]:
    end, usage = generation.end, generation.end.usage
    yield "gen_ai.operation.name", "chat"
    yield "gen_ai.provider.name", "antiphon"
    yield "gen_ai.request.model", observation.model or generation.model
    yield "gen_ai.response.model", generation.model
    yield "gen_ai.response.finish_reasons", [end.reason.value]
    yield "gen_ai.usage.input_tokens", generation.prompt_tokens
    yield "gen_ai.usage.output_tokens", usage.completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", usage.cached_tokens
    yield "gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens
    if observation.answer is not None:
        yield "gen_ai.response.id", observation.answer
    if generation.first is not None:
        yield "gen_ai.response.time_to_first_chunk", generation.first - generation.started
    if end.reason.value == "error":
        yield "error.type", observation.failure or "error"


def _decision(observation: Observation, decision: ObservedDecision) -> Iterable[tuple[str, Any]]:
    answers = decision.answers
    yield "gen_ai.operation.name", "decide"
    yield "gen_ai.provider.name", "antiphon"
    yield "gen_ai.request.model", observation.model or decision.model
    yield "gen_ai.response.model", decision.model
    yield "gen_ai.usage.input_tokens", answers.prompt_tokens
    yield "gen_ai.usage.cache_read.input_tokens", answers.cached_tokens
    yield "antiphon.decision.questions", len(answers.verdicts)
    yield "antiphon.decision.reads", answers.reads
    if decision.least_mass is not None:
        yield "antiphon.decision.label_mass", decision.least_mass


def _call(call: ObservedCall) -> Iterable[tuple[str, Any]]:
    yield "gen_ai.operation.name", "execute_tool"
    yield "gen_ai.tool.name", call.action
    yield "gen_ai.tool.type", "extension"
    if call.failed:
        yield "error.type", "tool_error"
