"""The command line: `antiphon serve`, `demo`, `chat`, `batch`, `launch`, `inspect` and others.

Each command only collects options and passes them on; engines and the web
server are imported inside the commands, so that `antiphon --help` stays quick.

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 130
stopped with Ctrl-C. Both kinds of failure are one line on stderr.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from antiphon import __version__
from antiphon.core.errors import AntiphonError
from antiphon.option_types import PARSING, Keys, Port, is_url

if TYPE_CHECKING:
    from antiphon.config import Settings

Url = Annotated[str, Parameter(env_var=["ANTIPHON_URL", "OPENAI_BASE_URL"])]

app = App(
    name="antiphon",
    help="Serve a language model to any client of OpenAI's or Anthropic's APIs, and talk to it.",
    version=__version__,
    **PARSING,
)


@app.command(help_flags=(), version_flags=())
def serve(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> None:
    """Serve a model over HTTP until Ctrl-C.

    Each option may also be set in its environment variable, or in the TOML file
    that --config names. The command line takes precedence over the environment,
    and the environment over the file.
    """
    _with_options(tokens, _serve, serve.__doc__, "serve")


def _with_options(
    tokens: Sequence[str], run: Callable[["Settings"], None], text: str | None, name: str
) -> None:
    """Call `run` with the settings that are in tokens, the environment and the file. Raises CycloptsError."""
    from antiphon.option_sources import command, explained  # noqa: PLC0415

    try:
        command(tokens, run, text, f"antiphon {name}")(tokens)
    except CycloptsError as error:
        raise explained(error, tokens) from error


def _serve(settings: "Settings") -> None:
    if settings.processes > 1:
        from antiphon.supervisor import supervise  # noqa: PLC0415

        supervise(settings)
        return
    from antiphon.http.server import serve as run  # noqa: PLC0415

    run(settings)


@app.command
def demo(*, host: str = "127.0.0.1", port: Port = 8000) -> None:
    """Start a server with scripted answers instead of a model, and print requests to try.

    Parameters
    ----------
    host
        The address to listen on.
    port
        The port to listen on; 0 picks a free one.
    """
    from antiphon import demo as parts  # noqa: PLC0415
    from antiphon.config import Settings  # noqa: PLC0415
    from antiphon.http.server import serve as run  # noqa: PLC0415

    run(parts.settings(Settings(host=host, port=port)), parts.greeting)


@app.command
def chat(
    *prompt: str,
    url: Url = "http://127.0.0.1:8000/v1",
    model: str | None = None,
    api_key: Annotated[Keys, Parameter(env_var="ANTIPHON_API_KEY")] = (),
    system: str | None = None,
) -> None:
    """Chat with a server in the terminal.

    Without a prompt, a conversation: /help lists the commands, /exit or Ctrl-D ends it,
    Ctrl-C stops the answer.

    Parameters
    ----------
    prompt
        Send this, print the answer and exit.
    url
        Where the server's API is; without a path, at /v1.
    model
        The model to ask. Without it, the first that the server lists.
    api_key
        The key to send, or @FILE. Of several, the first. Where the URL is OPENAI_BASE_URL, OPENAI_API_KEY.
    system
        The system message that starts each conversation.
    """
    from antiphon.chat import ChatClient, ask_once, converse  # noqa: PLC0415

    keys = api_key
    if not keys and url == os.environ.get("OPENAI_BASE_URL"):  # that key is for this server only
        keys = tuple(filter(None, [os.environ.get("OPENAI_API_KEY")]))
    client = ChatClient(url, api_key=next(iter(keys), None), model=model)
    if prompt:
        ask_once(client, " ".join(prompt), system)
    else:
        converse(client, system)


@app.command
def batch(  # noqa: PLR0913 - each is an option
    file_or_id: str,
    /,
    *,
    output: Path | None = None,
    endpoint: str | None = None,
    watch: Annotated[bool, Parameter(negative="--no-watch")] = True,
    url: Url = "http://127.0.0.1:8000/v1",
    api_key: Annotated[Keys, Parameter(env_var="ANTIPHON_API_KEY")] = (),
) -> None:
    """Answer the requests in a file in the background: send it, watch the batch, fetch the results.

    Ctrl-C leaves the batch running. Lines that failed are beside the output, in a file that ends in
    .errors.jsonl; then the exit code is 1.

    Parameters
    ----------
    file_or_id
        The file, a line of JSON for each request; or the id of a batch, to go on watching it.
    output
        The file for the results. Without it, beside the requests: lines.jsonl has lines.results.jsonl.
    endpoint
        What the lines ask: /v1/chat/completions or another. Without it, the url of the first line.
    watch
        Wait for the results. Otherwise, print the id of the batch.
    url
        Where the server's API is; without a path, at /v1.
    api_key
        The key to send, or @FILE. Of several, the first.
    """
    from antiphon.batch_client import run  # noqa: PLC0415
    from antiphon.chat import ChatClient  # noqa: PLC0415

    client = ChatClient(url, api_key=next(iter(api_key), None))
    run(client, file_or_id, endpoint=endpoint, output=output, watch=watch)


@app.command
def check(  # noqa: PLR0913 - each is an option
    url: str | None = None,
    /,
    *,
    model: str | None = None,
    api_key: Annotated[Keys, Parameter(env_var="ANTIPHON_API_KEY")] = (),
    api_key_env: str | None = None,
    api: str | None = None,
    only: str | None = None,
    timeout: float = 60,
    total_timeout: float = 1800,
    name: str | None = None,
    json: Path | None = None,
    markdown: Path | None = None,
    show: Annotated[bool, Parameter(name="--list", negative=())] = False,
) -> None:
    """Check whether a server does what the specifications of its APIs say.

    It sends some eighty requests of OpenAI's and Anthropic's APIs, and deletes what it stores. The exit
    code is 1 if a check has failed, or was not done for want of time, 2 if there is no server to check.

    Parameters
    ----------
    url
        Where the server's API is, with /v1 or without.
    model
        The model to ask. Without it, the first that the server lists.
    api_key
        The key to send, or @FILE. Of several, the first.
    api_key_env
        The environment variable that has the key.
    api
        The APIs to check, with commas between them. Without it, all: models, chat, responses,
        conversations, messages, decisions and systemone.
    only
        The checks to play, or the beginnings of their ids, such as chat.stream, with commas between them.
    timeout
        The seconds after which an answer has to be whole.
    total_timeout
        The seconds that all checks together may take. Those that are left then are not done.
    name
        What the reports call the server, such as its name and version.
    json
        Write the results to this file as JSON.
    markdown
        Write the results to this file as a page.
    show
        List the checks with their sources, and check nothing.
    """
    from antiphon.check import runner  # noqa: PLC0415

    if show:
        print("\n".join(runner.listed()))
        return
    try:
        options = runner.Options(
            url=url or "",
            model=model,
            key=runner.key_of(next(iter(api_key), None), api_key_env, os.environ),
            apis=runner.names_of(api),
            only=runner.names_of(only),
            seconds=timeout,
            total_seconds=total_timeout,
            name=name,
            json=json,
            markdown=markdown,
        )
        code = runner.run(options, sys.stdout)
    except runner.UnusableError as error:
        sys.exit(_fail(error.message, 2))
    if code:
        sys.exit(code)


@app.command(name="launch")
def launch_agent(  # noqa: PLR0913 - each is an option
    agent: Literal["codex", "claude", "opencode", "pi", "qwen"],
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    url: Annotated[str, Parameter(env_var="ANTIPHON_URL")] = "http://127.0.0.1:8000/v1",
    model: str | None = None,
    api_key: Annotated[Keys, Parameter(env_var="ANTIPHON_API_KEY")] = (),
    serve: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    show: Annotated[bool, Parameter(name="--print", negative=())] = False,
) -> None:
    """Start a coding agent with the model of a server, which runs already or is started for it.

    The agent gets a configuration of its own: yours is left alone.

    Parameters
    ----------
    agent
        The program to start.
    arguments
        For the program; after -- also those that have a meaning here.
    url
        Where the server's API is; without a path, at /v1.
    model
        The model to use. Without it, the first that the server lists.
    api_key
        The key to send, or @FILE. Of several, the first.
    serve
        Start a server with these options of antiphon serve, in quotes, and end it with the program.
    show
        Print what would be set and started, and start nothing.
    """
    from antiphon import launch  # noqa: PLC0415
    from antiphon.chat import ChatClient  # noqa: PLC0415

    row, key = launch.AGENTS[agent], next(iter(api_key), None)
    with launch.started(serve, launch.folder_of(row)) if serve is not None else nullcontext((url, key)) as at:
        address, key = at
        server = launch.server_at(ChatClient(address, api_key=key, model=model), key)
        if show:
            print(launch.described(row, server, arguments))
        else:
            sys.exit(launch.launch(row, server, arguments))


def _is_kind(given: object, value: str | None) -> None:
    """Raise ValueError if there is no such kind of server."""
    from antiphon.engines.upstream import is_kind  # noqa: PLC0415

    is_kind(given, value)


@app.command
def inspect(  # noqa: PLR0913 - each is an option
    model_or_template: str | None = None,
    /,
    *,
    json: bool = False,
    template: bool = False,
    decisions: bool = False,
    upstream_kind: Annotated[str | None, Parameter(validator=_is_kind)] = None,
    upstream_model: str | None = None,
    upstream_key: Annotated[str | None, Parameter(env_var="ANTIPHON_UPSTREAM_KEY")] = None,
    tokenizer: str | None = None,
) -> None:
    """Report the features of a model's chat template, or of a server, and the dialect that fits it.

    Parameters
    ----------
    model_or_template
        A chat template (.jinja or .txt), a model as for serve, or the URL of a server.
        Without one, the small model.
    json
        Print everything as JSON.
    template
        Print the chat template, too.
    decisions
        Load the model, and report how it decides: the texts that begin its answers, and how probable
        labels are after each.
    upstream_kind
        Of a server: what kind of server it is.
    upstream_model
        Of a server: which of its models.
    upstream_key
        Of a server: the key that it asks for.
    tokenizer
        Of a server: where the model's tokenizer and chat template are.
    """
    import msgspec  # noqa: PLC0415

    from antiphon.engines.upstream import Options  # noqa: PLC0415
    from antiphon.run import inspect as models  # noqa: PLC0415
    from antiphon.run import inspect_upstream as upstreams  # noqa: PLC0415

    report: msgspec.Struct
    if model_or_template and is_url(model_or_template):
        report = upstreams.inspect_upstream(
            Options(
                model_or_template,
                upstream_kind=upstream_kind,
                upstream_model=upstream_model,
                upstream_key=upstream_key,
                tokenizer=tokenizer,
            )
        )
        text = upstreams.lines(report)
    else:
        report = models.inspect(model_or_template, template=template, decisions=decisions)
        text = models.lines(report)
    print(msgspec.json.format(msgspec.json.encode(report)).decode() if json else "\n".join(text))


@app.command(help_flags=(), version_flags=())
def calibrate(
    cases: Path, file: Path, /, *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]
) -> None:
    """Fit the probabilities of a model's decisions on cases whose answers are known.

    Write the calibration for serve --calibration to FILE, and a plot for each kind of question beside
    it. What follows are a model and the options of serve.

    Parameters
    ----------
    cases
        The cases, a line of JSON each (docs/decisions-api.md).
    file
        The file to write.
    """
    _with_options(tokens, partial(_calibrate, cases, file), calibrate.__doc__, "calibrate CASES FILE")


def _calibrate(cases: Path, file: Path, settings: "Settings") -> None:
    from antiphon.calibrate import calibrate as run  # noqa: PLC0415

    run(cases, file, settings, sys.stdout)


@app.command(help_flags=(), version_flags=())
def doctor(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> None:
    """Check what would keep a server from starting here, and say what to do about it.

    Checked are the machine, the extras, the configuration and the model, for a model and options as those of
    serve. Nothing is changed, and nothing is started. The exit code is 1 if something would fail.
    """
    from antiphon import doctor as checks  # noqa: PLC0415

    found: list[checks.Check] = []
    try:
        _with_options(tokens, lambda given: found.extend(checks.checks(given)), doctor.__doc__, "doctor")
    except CycloptsError as error:
        found.extend(checks.without_settings(_sentences(str(error))))
    if found:  # otherwise help was asked for
        print("\n".join(checks.lines(found)))
        sys.exit(checks.exit_code(found))


@app.command
def replay(
    answer: str,
    /,
    *,
    url: Url = "http://127.0.0.1:8000/v1",
    api_key: Annotated[Keys, Parameter(env_var="ANTIPHON_API_KEY")] = (),
    dialect: str | None = None,
) -> None:
    """Decode the record of an answer again, and print its prompt, raw text, events and verdicts.

    Parameters
    ----------
    answer
        The id of an answer that a server with --debug-answers keeps, or of a background response that
        is stored; or a file with what GET /v1/debug/ID has given.
    url
        Where the server's API is.
    api_key
        The key to send, or @FILE. Of several, the first.
    dialect
        Decode it by this dialect. Without one, by that of the answer.
    """
    from antiphon.chat import ChatClient  # noqa: PLC0415
    from antiphon.replay import replay as run  # noqa: PLC0415

    run(answer, ChatClient(url, api_key=next(iter(api_key), None)), dialect, sys.stdout)


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the script that completes commands and options in a shell.

    bash: antiphon completion bash > ~/.local/share/bash-completion/completions/antiphon

    zsh: antiphon completion zsh > _antiphon, in a folder of $fpath

    fish: antiphon completion fish > ~/.config/fish/completions/antiphon.fish

    Parameters
    ----------
    shell
        The shell.
    """
    from antiphon.option_sources import command  # noqa: PLC0415

    complete = App(name="antiphon")
    for name, text in (("serve", serve.__doc__), ("doctor", doctor.__doc__)):
        complete.command(command((), lambda _: None, text), name=name)
    complete.command(launch_agent, name="launch")
    for function in (demo, chat, batch, check, inspect, calibrate, replay, completion, version):
        complete.command(function)
    script = complete.generate_completion(shell=shell)
    # Arguments without choices may be files, such as a model: fish completes these, others need to be told.
    if shell == "bash":
        script = script.replace("complete -F", "complete -o default -F")
    elif shell == "zsh":
        script = _ARGUMENT.sub(r"\1:_files'", script).replace("_cyclopts_antiphon", "_antiphon")
    print(script)


_ARGUMENT = re.compile(r"""('1:(?:[^':\\]|\\.|'\\'')*)'(?= \\)""")
"""In a script for zsh, an argument without choices."""


@app.command
def version() -> None:
    """Print the version."""
    print(__version__)


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command line, `sys.argv` unless given; the exit code."""
    if isinstance(sys.stdout, TextIOWrapper):  # what a server says may have characters that it cannot write
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(tokens)
    except UnusedCliTokensError as error:
        return _fail(f"Too many arguments: {' '.join(error.unused_tokens or ())}. See --help.", 2)
    except CycloptsError as error:
        return _fail(str(error), 2)
    except AntiphonError as error:
        return _fail(error.message, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _fail(message: str, code: int) -> int:
    print("antiphon:", _sentences(" ".join(message.split())), file=sys.stderr)
    return code


def _sentences(message: str) -> str:
    """The message, each of whose sentences begins with a capital letter; what is in quotes is as it was."""
    return _BEGINNING.sub(lambda found: found[0].capitalize() if found["begins"] else found[0], message)


_BEGINNING = re.compile(
    r""""[^"]*"|(?<![^ ])'[^']*'(?!\w)|`[^`]*`|(?P<begins>(?:^|(?<=[.?!] ))[a-z]+(?:'[a-z]+)?(?= ))"""
)
"""The first word of a sentence, unless it is a name with other characters than letters; or a quotation."""
