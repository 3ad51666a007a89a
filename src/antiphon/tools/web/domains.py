"""Which domains of the web may be read."""

import httpx2
from msgspec import Struct


class Domains(Struct, frozen=True):
    """The domains that may be read, subdomains included: `allowed` ones, or all but `blocked` ones."""

    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def admits(self, url: str) -> bool:
        """Whether a URL may be read; only web pages may."""
        host = host_of(url)
        return (
            bool(host)
            and (not self.allowed or _within(host, self.allowed))
            and not _within(host, self.blocked)
        )


def host_of(url: str) -> str:
    """The host of a web page for DNS, in ASCII; empty if the URL is not a web page."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return ""
    web = parsed.scheme in ("http", "https")
    return parsed.raw_host.decode("ascii").lower().rstrip(".") if web else ""


def _within(host: str, domains: tuple[str, ...]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)
