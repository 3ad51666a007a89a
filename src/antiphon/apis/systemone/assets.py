"""Images of a request, and their placeholders in its texts.

A placeholder in the state or in instructions becomes its image. In what an option means it becomes a name,
under which the image stands after the instructions: options are one line each.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from antiphon.apis.media import at_url
from antiphon.apis.questions import is_empty
from antiphon.apis.request_object import RequestObject
from antiphon.apis.systemone.schema import Asset
from antiphon.core.errors import RequestError
from antiphon.core.items import Attachment, MediaKind, Part, TextPart

Uploads = Mapping[str, str]
"""The parts of a form by their names: base64."""


class Assets:
    """The images of a request, by placeholders. Raises RequestError for one that is no image."""

    def __init__(self, assets: Mapping[str, Asset], uploads: Uploads) -> None:
        images = _images(assets, uploads)
        # Of several placeholders that begin alike, the longest counts.
        self._images = {name: images[name] for name in sorted(images, key=len, reverse=True)}
        self._escaped = {_in_json(name): image for name, image in self._images.items()}
        self._unused = set(self._images.values())

    def parts(self, text: str, *, json: bool = False) -> tuple[Part, ...]:
        """A text, or the text of JSON, with images in the places of placeholders."""
        parts: list[Part] = [TextPart(text)] if text else []
        for name, image in (self._escaped if json else self._images).items():
            if name in text:
                self._unused.discard(image)
                parts = [piece for part in parts for piece in _split(part, name, image)]
        return tuple(parts)

    def named(self, text: str, names: dict[Attachment, str], *, json: bool = False) -> str:
        """A text with the names of images in the places of placeholders; `names` gets new ones."""
        shown = [
            part.text if isinstance(part, TextPart) else names.setdefault(part, f"[image {len(names) + 1}]")
            for part in self.parts(text, json=json)
            if isinstance(part, TextPart | Attachment)
        ]
        return "".join(shown)

    def check_used(self) -> None:
        """Raise RequestError for an image that the model would not see."""
        if self._unused:
            param = min(image.param for image in self._unused)
            message = (
                f"The placeholder of '{param}' stands nowhere in the texts. Put it there, or leave it out."
            )
            raise RequestError(message, param=param)


def listed(urls: Sequence[str] | None, kind: MediaKind, name: str) -> tuple[Part, ...]:
    """The media at the URLs of a list. Raises RequestError."""
    placed = {f"{name}[{index}]": url for index, url in enumerate(urls or ())}
    return tuple(at_url(kind, RequestObject(placed, ""), place, place) for place in placed)


def _images(assets: Mapping[str, Asset], uploads: Uploads) -> dict[str, Attachment]:
    used = [asset.part for asset in assets.values() if asset.part is not None]
    if spare := sorted({*uploads} - {*used}):
        raise RequestError(f"No asset names the part '{spare[0][:64]}' of the form.", param="assets")
    images = {}
    for name, asset in assets.items():
        param = f"assets.{name}"
        if is_empty(name):
            raise RequestError("The placeholder of an asset is a text that is not empty.", param="assets")
        images[name] = Attachment(MediaKind.IMAGE, param, data=_data(asset, uploads, param))
    return images


def _data(asset: Asset, uploads: Uploads, param: str) -> str:
    if asset.part is not None:
        if asset.part not in uploads:
            message = f"The request has no part '{asset.part[:64]}'. Send it in a form, after 'request'."
            raise RequestError(message, param=f"{param}.part")
        return uploads[asset.part]
    if not asset.data_base64:
        message = (
            f"'{param}' has no image. Send 'data_base64', or 'part' with the name of a part of the form."
        )
        raise RequestError(message, param=f"{param}.data_base64")
    return asset.data_base64


def _in_json(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


def _split(part: Part, name: str, image: Attachment) -> Iterator[Part]:
    """A part with an image in the places of its placeholder."""
    if not isinstance(part, TextPart):
        yield part
        return
    for place, piece in enumerate(part.text.split(name)):
        if place:
            yield image
        if piece:
            yield TextPart(piece)
