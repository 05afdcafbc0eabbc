"""A film of an episode, written as GIF, with fewer frames per step for long episodes."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from experiments.files.disk import write_bytes
from jaxreplay.saving import check_writable

Array = np.ndarray

_MOST = 300  # largest number of pictures
_SIDE = 320  # largest side of a picture, in pixels
_BYTES = 3_000_000  # largest size of a GIF
_COLOURS = 128  # size of the palette of a GIF


MARK = b"jaxreplay experiments.watch"  # comment that identifies films of this package
_HEAD = 65_536  # number of bytes at the beginning of a file in which the comment must occur


def check_path(path: Path) -> None:
    """Check that a film can be written to a path, without creating any file.

    Raises:
      ValueError: the suffix is not .gif, or the path is a folder, a link or a file that is not a
        film of this package.
    """
    if path.suffix != ".gif":
        raise ValueError(f"{path} must end in .gif")
    check_writable(path, "give the name of a file")
    if path.exists() and not _is_ours(path):
        raise ValueError(
            f"{path} was not written by this command: remove it, or choose another --out"
        )


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK in file.read(_HEAD)


class Film:
    """At most 300 pictures of an episode of any length, evenly spaced."""

    def __init__(self) -> None:
        self._pictures: list[Image.Image] = []
        self.stride = 1  # steps between two pictures

    def wants(self, step: int) -> bool:
        """Return whether to add a picture of a step; steps are counted from 0."""
        return step % self.stride == 0

    def add(self, picture: Array) -> None:
        """Add a picture `[H, W, 3]` uint8, scaled down to at most 320 pixels per side."""
        image = Image.fromarray(picture)
        image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
        self._pictures.append(image)
        if len(self._pictures) > _MOST:
            self._thin_out()

    def write(self, path: Path, fps: int) -> int:
        """Write the file atomically; return the number of pictures in it.

        While a GIF is larger than about 3 MB, every second picture is dropped.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, self._gif(fps))
        return len(self._pictures)

    def _thin_out(self) -> None:
        self._pictures = self._pictures[::2]
        self.stride *= 2

    def _gif(self, fps: int) -> bytes:
        while True:
            content = _gif(self._pictures, fps)
            if len(content) <= _BYTES or len(self._pictures) < 3:
                return content
            self._thin_out()


def _gif(pictures: list[Image.Image], fps: int) -> bytes:
    """Encode all pictures with one palette, so that static regions compress well."""
    some = pictures[:: max(1, len(pictures) // 16)]
    width, height = pictures[0].size
    joint = Image.new("RGB", (width, height * len(some)))
    for index, image in enumerate(some):
        joint.paste(image, (0, index * height))
    palette = joint.quantize(_COLOURS, Image.Quantize.MEDIANCUT)
    flat = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in pictures]
    content = io.BytesIO()
    flat[0].save(
        content, "GIF", save_all=True, append_images=flat[1:], duration=round(1000 / fps), loop=0,
        comment=MARK,
    )  # fmt: skip
    return content.getvalue()
