"""`web_search` in the Messages API: Anthropic's web search, and its fetching of pages."""

from itertools import zip_longest
from typing import Any

from antiphon.apis.messages.server_tools import EVERY_TOOL, FAILED, Seal, ToolView, Unseal, result_text
from antiphon.apis.request_object import Object, RequestObject
from antiphon.core.items import FunctionCall
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Function
from antiphon.toolkits.web_search.details import TYPE, FindDetails, OpenDetails, SearchDetails

_SEARCH, _FETCH = "web_search", "web_fetch"
_DOMAINS = ("allowed_domains", "blocked_domains")


class WebMessageView(ToolView):
    """The first block of a search has the text that the model was shown, sealed."""

    type = TYPE
    implements = {_SEARCH: None, _FETCH: frozenset({"open", "find"})}  # noqa: RUF012 - of the class
    blocks = {"search": _SEARCH, "open": _FETCH, "find": _FETCH}  # noqa: RUF012
    settings = (*EVERY_TOOL, "max_uses", *_DOMAINS, "user_location", "citations")
    names_caller = True

    def own_settings(self, tool: RequestObject) -> Object:
        """The domains are filters here."""
        filters = {name: tool.value[name] for name in _DOMAINS if tool.value.get(name) is not None}
        settings: Object = {"type": self.type}
        if filters:
            settings["filters"] = filters
        if tool.value.get("user_location") is not None:
            settings["user_location"] = tool.value["user_location"]
        return settings

    def input(self, name: str, call: FunctionCall) -> Object:
        """A page that is fetched has a `url`."""
        arguments = super().input(name, call)
        if name == _FETCH and isinstance(arguments.get("id"), str):
            return {**arguments, "url": arguments["id"]}
        return arguments

    def content(self, name: str, result: ToolResult, seal: Seal) -> Any:
        """The pages that were found, or the one that was opened."""
        return _searched(result, seal) if name == _SEARCH else _fetched(result)

    def action(self, name: str, input_: Object) -> str | None:
        """Anthropic has one tool for opening pages and for finding texts in them."""
        if name == _FETCH:
            return "find" if "pattern" in input_ else "open"
        return "search"

    def arguments(self, name: str, input_: Object, function: Function | None) -> Object:
        """The `url` is an `id` here."""
        url = input_.get("url")
        if name != _FETCH or "url" not in input_:
            return input_
        arguments = {member: value for member, value in input_.items() if member != "url"}
        return arguments if url is None else {"id": url, **arguments}

    def result_text(self, block: RequestObject, unseal: Unseal) -> str:
        """The text that the model was shown, or what is there of pages that another server has found."""
        content = block.value.get("content")
        if block.value["type"] == f"{_SEARCH}_tool_result" and isinstance(content, list):
            return "\n".join(filter(None, (_page_text(page, unseal) for page in block.objects("content"))))
        match content:
            case {"type": "web_fetch_result", "content": {"source": {"data": str(text)}}}:
                return text
        return result_text(block)


def _searched(result: ToolResult, seal: Seal) -> Any:
    if result.failed or not isinstance(result.details, SearchDetails):
        return {"type": "web_search_tool_result_error", "error_code": FAILED}
    # Each page is listed; the first one has the text that the model was shown of all.
    pages = zip_longest(result.details.sources, result.details.titles)
    return [
        {
            "type": "web_search_result",
            "url": url,
            "title": title or url,
            "encrypted_content": seal("" if index else result.text),
            "page_age": None,
        }
        for index, (url, title) in enumerate(pages)
    ]


def _fetched(result: ToolResult) -> Any:
    if result.failed:
        return {"type": "web_fetch_tool_result_error", "error_code": FAILED}
    url = result.details.url if isinstance(result.details, OpenDetails | FindDetails) else None
    source = {"type": "text", "media_type": "text/plain", "data": result.text}
    document = {"type": "document", "source": source, "title": None, "citations": None}
    return {"type": "web_fetch_result", "url": url or "", "content": document, "retrieved_at": None}


def _page_text(page: RequestObject, unseal: Unseal) -> str:
    """The text for the model of a page that was found; title and address, if another server found it."""
    text = unseal(page.text_or_none("encrypted_content") or "")
    if text is not None:
        return text
    return " ".join(filter(None, (page.text_or_none("title"), page.text_or_none("url"))))
