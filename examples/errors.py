"""Errors of an example, as one line: `sys.excepthook = in_words`."""

import sys


def in_words(kind, error, trace) -> None:
    """Print the server's message, that there is no server, or the missing file."""
    request = getattr(error, "request", None)  # errors of OpenAI's and Anthropic's clients have it
    if isinstance(error, OSError):
        said = f"{error.filename}: {error.strerror}"
    elif request is None:
        sys.__excepthook__(kind, error, trace)
        return
    elif isinstance(error.body, dict):
        said = error.body.get("error", error.body)["message"]  # Anthropic's is one level deeper
    elif hasattr(error, "status_code"):
        said = f"{request.url} answers {error.status_code}. Is it an Antiphon? ANTIPHON_URL names another."
    else:
        said = f"No server answers at {request.url}. Start one, or name another: ANTIPHON_URL=http://…/v1"
    print(said, file=sys.stderr)
