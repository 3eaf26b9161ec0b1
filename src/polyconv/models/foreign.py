"""What a file is that is given as a model and is none, by its first bytes, and what to do with it.

It must not know models.
"""

from __future__ import annotations

__all__ = ["foreign"]

_INPUT = "it is what a model is fed: polyconv run MODEL --input NAME=FILE, or session.run(None, {name: array})"
_EXPORT = "export it to ONNX: "

# first byte, bytes, what it is, what to do
_KINDS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\x89PNG\r\n", "a PNG picture", _INPUT),
    (0, b"\xff\xd8\xff", "a JPEG picture", _INPUT),
    (0, b"GIF8", "a GIF picture", _INPUT),
    (0, b"BM", "a BMP picture", _INPUT),
    (8, b"WEBP", "a WebP picture", _INPUT),
    (0, b"II*\0", "a TIFF picture", _INPUT),
    (0, b"MM\0*", "a TIFF picture", _INPUT),
    (0, b"%PDF", "a PDF document", "give an .onnx file, or the .xml of an OpenVINO IR"),
    (0, b"\x93NUMPY", "a NumPy array", _INPUT),
    (0, b"PK\x03\x04", "a zip archive, such as .npz, .pt or .keras",
     f"arrays are inputs; a model {_EXPORT}torch.onnx.export, tf2onnx"),
    (0, b"\x80\x02", "a Python pickle, such as an older .pt", f"{_EXPORT}torch.onnx.export"),
    (0, b"\x89HDF\r\n", "an HDF5 file, such as .h5 of Keras", f"{_EXPORT}tf2onnx"),
    (4, b"TFL3", "a TensorFlow Lite model", f"{_EXPORT}tf2onnx --tflite"),
)  # fmt: skip


def foreign(data: bytes) -> str | None:
    """Say what a file is and the way out, or None if its first bytes are none of the known ones."""
    for first, magic, what, way_out in _KINDS:
        if data[first : first + len(magic)] == magic:
            return f"is {what}, no model; {way_out}"
    head = data[:256].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "is an HTML page, no model; was it downloaded from the right address?"
    if head.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the model itself; fetch it with git lfs pull"
    return None
