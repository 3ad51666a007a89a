"""openai-python: a tool round trip in every way that the SDK has, an answer read into a class, a stored answer."""

import json
import sys
from typing import Any

from openai import NotFoundError, OpenAI
from openai.lib.decisions_tool_runner import DecisionsToolRunner
from pydantic import BaseModel

URL, MODEL, API, WAY = sys.argv[1:]
QUESTION = "How is the weather in Rome?"
CITY = "Describe Rome."
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CHAT: dict[str, Any] = {"model": MODEL, "tools": [{"type": "function", "function": WEATHER}]}
RESPONSES: dict[str, Any] = {"model": MODEL, "tools": [{"type": "function", **WEATHER}]}
Fact = dict[str, Any]
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

client = OpenAI(base_url=URL, max_retries=0, timeout=20)


class City(BaseModel):
    """What the model is to answer."""

    name: str
    hills: int


def get_weather(city: str) -> str:
    return "sunny, 21 degrees" if city == "Rome" else "unknown"


def fact(text: str | None, calls: list[Any], deltas: list[str], tokens: int) -> Fact:
    """A round trip. `streamed`: the answer came in pieces, which add up to it."""
    streamed = len(deltas) > 1 and "".join(deltas) == text
    return {"text": text, "calls": calls, "streamed": streamed, "counted": tokens > 0}


class Chat:
    """Chat Completions."""

    def create(self) -> Fact:
        return self.round_trip(self.created)

    def created(self, messages: list[Any]) -> tuple[Any, list[str]]:
        return client.chat.completions.create(messages=messages, **CHAT), []

    def stream(self) -> Fact:
        return self.round_trip(self.streamed)

    def streamed(self, messages: list[Any]) -> tuple[Any, list[str]]:
        options: Any = {"include_usage": True}
        with client.chat.completions.stream(messages=messages, stream_options=options, **CHAT) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            return stream.get_final_completion(), deltas

    def round_trip(self, ask: Any) -> Fact:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        calls: list[Any] = []
        while True:
            completion, deltas = ask(messages)
            message = completion.choices[0].message
            if not message.tool_calls:
                return fact(message.content, calls, deltas, completion.usage.completion_tokens)
            messages.append(message.to_dict())
            for call in message.tool_calls:
                arguments = json.loads(call.function.arguments)
                calls.append([call.function.name, arguments])
                result = get_weather(**arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def image(self) -> Fact:
        text, image = (
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": PICTURE}},
        )
        messages: Any = [{"role": "user", "content": [text, image]}]
        completion = client.chat.completions.create(model=MODEL, messages=messages)
        usage: Any = completion.usage
        tokens = usage.prompt_tokens_details.image_tokens
        return {"text": completion.choices[0].message.content, "image_tokens": tokens}

    def parse(self) -> Fact:
        messages: Any = [{"role": "user", "content": CITY}]
        completion = client.chat.completions.parse(model=MODEL, messages=messages, response_format=City)
        city = completion.choices[0].message.parsed
        assert city is not None
        return {"parsed": city.model_dump()}


class Responses:
    """The Responses API: the history is sent again, or kept by the server."""

    def create(self) -> Fact:
        return self.sent_again(self.created)

    def create_kept(self) -> Fact:
        return self.kept(self.created)

    def created(self, **more: Any) -> tuple[Any, list[str]]:
        return client.responses.create(**RESPONSES, **more), []

    def stream(self) -> Fact:
        return self.sent_again(self.streamed)

    def stream_kept(self) -> Fact:
        return self.kept(self.streamed)

    def streamed(self, **more: Any) -> tuple[Any, list[str]]:
        with client.responses.stream(**RESPONSES, **more) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            return stream.get_final_response(), deltas

    def background(self) -> Fact:
        return self.kept(self.followed)

    def followed(self, **more: Any) -> tuple[Any, list[str]]:
        """Begun in the background and then read as a stream, from its first event."""
        response = client.responses.create(**RESPONSES, **more, background=True, stream=False)
        with client.responses.retrieve(response.id, stream=True) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        return client.responses.retrieve(response.id), deltas

    def sent_again(self, ask: Any) -> Fact:
        items: list[Any] = [{"role": "user", "content": QUESTION}]
        calls: list[Any] = []
        while True:
            response, deltas = ask(input=items, store=False)
            results = self.results(response, calls)
            if not results:
                return fact(response.output_text, calls, deltas, response.usage.output_tokens)
            items += [item.to_dict() for item in response.output] + results

    def kept(self, ask: Any) -> Fact:
        calls: list[Any] = []
        response, deltas = ask(input=QUESTION)
        while results := self.results(response, calls):
            response, deltas = ask(input=results, previous_response_id=response.id)
        return fact(response.output_text, calls, deltas, response.usage.output_tokens)

    def results(self, response: Any, calls: list[Any]) -> list[Any]:
        results = []
        for item in response.output:
            if item.type == "function_call":
                arguments = json.loads(item.arguments)
                calls.append([item.name, arguments])
                output = get_weather(**arguments)
                results.append({"type": "function_call_output", "call_id": item.call_id, "output": output})
        return results

    def image(self) -> Fact:
        """The second question is about an image that the server keeps."""
        image = {"type": "input_image", "image_url": PICTURE, "detail": "auto"}
        content: Any = [{"type": "input_text", "text": "What is this?"}, image]
        asked: Any = [{"role": "user", "content": content}]
        counted = client.responses.input_tokens.count(model=MODEL, input=asked)
        first = client.responses.create(model=MODEL, input=asked)
        assert first.usage is not None
        second = client.responses.create(model=MODEL, input="Sure?", previous_response_id=first.id)
        tokens = first.usage.input_tokens - counted.input_tokens
        return {"text": second.output_text, "image_tokens": tokens}

    def parse(self) -> Fact:
        city = client.responses.parse(model=MODEL, input=CITY, text_format=City).output_parsed
        assert city is not None
        return {"parsed": city.model_dump()}

    def stored(self) -> Fact:
        """A response that is read again, counted beforehand, and deleted."""
        request: dict[str, Any] = {"model": MODEL, "input": "Hi", "instructions": "Be kind."}
        response = client.responses.create(**request)
        again = client.responses.retrieve(response.id)
        [item] = client.responses.input_items.list(response.id)
        counted = client.responses.input_tokens.count(**request)
        client.responses.delete(response.id)
        return {
            "text": response.output_text,
            "same": again.to_dict() == response.to_dict(),
            "input": item.to_dict()["content"],
            "counted": response.usage is not None and counted.input_tokens == response.usage.input_tokens,
            "deleted": self.is_gone(response.id),
        }

    def is_gone(self, response_id: str) -> bool:
        try:
            client.responses.retrieve(response_id)
        except NotFoundError:
            return True
        return False


class Decisions:
    """Decisions, and the loop that picks actions by them."""

    def create(self) -> Fact:
        decision = client.decisions.create(
            model=MODEL,
            input=[
                {"role": "user", "content": [{"type": "input_json", "data": {"ticket": "Charged twice."}}]}
            ],
            questions=[
                {
                    "type": "choice",
                    "name": "route",
                    "instructions": "Which team?",
                    "choices": [{"value": "billing", "description": "payments"}, {"value": True}],
                },
                {
                    "type": "score",
                    "instructions": "How urgent?",
                    "levels": [{"label": "low"}, {"label": "high"}],
                },
                {"type": "predicate", "instructions": [{"type": "input_text", "text": "Angry?"}]},
            ],
            safety_identifier="someone",
        )
        route, urgency, angry = decision.answers
        assert route.type == "choice"
        assert urgency.type == "score"
        assert angry.type == "predicate"
        return {
            "model": decision.model,
            "names": [answer.name for answer in decision.answers],
            "values": [each.value for each in route.probabilities],
            "chosen": route.choice in ("billing", True) and 0 <= route.confidence <= 1,
            "score": 0 <= urgency.score <= 1,
            "angry": 0 <= angry.probability <= 1,
            "counted": decision.usage.total_tokens == decision.usage.input_tokens > 0,
        }

    def runner(self) -> Fact:
        """It looks, and is done; only the end is left then."""
        looked: list[str] = []

        def observe() -> Any:
            image = {"type": "input_image", "image_url": PICTURE, "detail": "low"}
            return [{"type": "input_text", "text": f"Looked {len(looked)} times."}, image]

        def candidates(_: Any) -> Any:
            done = {"id": "done", "description": "The task is complete.", "done": True}
            look = {"id": "look", "description": "Look.", "execute": lambda: looked.append("look")}
            again = {"id": "again", "description": "Look again.", "execute": lambda: looked.append("again")}
            return [done] if looked else [look, again, done]

        runner = DecisionsToolRunner(observe=observe, candidates=candidates)
        result = runner.run(client, {"model": MODEL, "input": "Look at it."}, max_steps=3)
        return {
            "status": result["status"],
            "decided": len(result["decisions"]),
            "done": result["completed_candidate_ids"] == looked,
        }


APIS: dict[str, Any] = {"chat": Chat, "responses": Responses, "decisions": Decisions}
print(json.dumps(getattr(APIS[API](), WAY)()))
