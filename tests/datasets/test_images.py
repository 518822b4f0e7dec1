import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedprompt.datasets._images import UNREADABLE, common_size, read_image, to_array

RED = (200, 40, 40)


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def test_grey_is_replicated(tmp_path: Path) -> None:
    image = read_image(saved(tmp_path / "grey.png", Image.new("L", (3, 3), 77)))
    assert image.getpixel((1, 1)) == (77, 77, 77)


def test_sixteen_bit_grey_is_scaled_not_cut_off(tmp_path: Path) -> None:
    grey = Image.fromarray(np.full((3, 3), 77 * 257, np.uint16))
    assert read_image(saved(tmp_path / "deep.png", grey)).getpixel((1, 1)) == (77, 77, 77)


def test_floats_between_0_and_1_are_scaled(tmp_path: Path) -> None:
    grey = Image.fromarray(np.full((3, 3), 0.5, np.float32))
    assert read_image(saved(tmp_path / "float.tif", grey)).getpixel((1, 1)) == (128, 128, 128)


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_black_stays_black(tmp_path: Path, kind: type) -> None:
    file = saved(tmp_path / f"black.{'png' if kind == np.uint16 else 'tif'}", Image.fromarray(np.zeros((3, 3), kind)))
    if kind == np.int32:
        with pytest.raises(ValueError, match="no fixed range"):
            read_image(file)
    else:
        assert read_image(file).getpixel((1, 1)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("name", "pixels", "reason"),
    [
        ("a.tif", np.full((3, 3), 100.0, np.float32), "must lie between 0 and 1"),
        ("a.tif", np.full((3, 3), -0.1, np.float32), "must lie between 0 and 1"),
        ("a.tif", np.full((3, 3), np.nan, np.float32), "must lie between 0 and 1"),
        ("a.tif", np.full((3, 3), 2**30, np.int32), "32-bit integer pixels have no fixed range"),
        ("a.tif", np.full((3, 3), 200, np.int32), "32-bit integer pixels have no fixed range"),
        ("a.png", np.full((3, 3), 4095, np.uint16), "12-bit data, would come out black"),
        ("a.tif", np.full((3, 3), 4095, np.uint16), "12-bit data, would come out black"),
    ],
)
def test_pixels_without_a_known_range_are_refused(tmp_path: Path, name: str, pixels: np.ndarray, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_image(saved(tmp_path / name, Image.fromarray(pixels)))


@pytest.mark.parametrize(("value", "result"), [(4095, None), (200 * 257, 200)])
def test_sixteen_bit_colour(tmp_path: Path, value: int, result: int | None) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = 2 * (b"\0" + 2 * 3 * struct.pack(">H", value))
    header = struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)  # 2 x 2, 16 bits, colour
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
    if result is None:
        with pytest.raises(ValueError, match="would come out black"):
            read_image(tmp_path / "a.png")
    else:
        assert read_image(tmp_path / "a.png").getpixel((0, 0)) == (result,) * 3


def test_palette(tmp_path: Path) -> None:
    palette = Image.new("RGB", (3, 3), RED).quantize(4)
    assert read_image(saved(tmp_path / "palette.gif", palette)).getpixel((1, 1)) == pytest.approx(RED, abs=2)


def test_cmyk(tmp_path: Path) -> None:
    cmyk = Image.new("RGB", (8, 8), RED).convert("CMYK")
    image = read_image(saved(tmp_path / "print.jpg", cmyk, quality=95))
    assert image.mode == "RGB"
    assert image.getpixel((4, 4)) == pytest.approx(RED, abs=6)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_becomes_white(tmp_path: Path, mode: str) -> None:
    if mode == "P":
        file = saved(tmp_path / "clear.png", Image.new("P", (3, 3), 0), transparency=0)
    else:
        file = saved(tmp_path / "clear.png", Image.new("RGBA", (3, 3), (0, 0, 0, 0)).convert(mode))
    assert read_image(file).getpixel((1, 1)) == (255, 255, 255)


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 2), "white")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    assert read_image(saved(tmp_path / "turned.jpg", image, exif=exif)).size == (2, 4)


def test_an_image_inside_a_zip(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 3), RED).save(buffer, "PNG")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("d/c/ü 1.png", buffer.getvalue())
    file = zipfile.Path(tmp_path / "a.zip") / "d/c/ü 1.png"
    assert read_image(file).getpixel((0, 0)) == RED
    with pytest.raises(UNREADABLE):
        read_image(zipfile.Path(tmp_path / "a.zip") / "d/c/none.png")


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp", "webp", "tif"])
def test_a_truncated_image_is_unreadable(tmp_path: Path, ending: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 40, 3), dtype=np.uint8))
    file = saved(tmp_path / f"cut.{ending}", noise)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UNREADABLE):
        read_image(file)


def test_resizing_averages_over_what_it_drops() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 200
    small = to_array(Image.fromarray(stripes), 8)
    assert small.shape == (3, 8, 8)
    assert np.abs(small[:, :, 1:-1].astype(int) - 100).max() <= 6  # without antialias it would be 0 or 200


@pytest.mark.parametrize(
    ("sizes", "side"), [([(32, 32)] * 2, 32), ([(32, 32), (33, 33)], 224), ([(32, 40)], 224), ([(300, 300)], 224)]
)
def test_common_size(tmp_path: Path, sizes: list[tuple[int, int]], side: int) -> None:
    files = [saved(tmp_path / f"{k}.png", Image.new("RGB", size)) for k, size in enumerate(sizes)]
    (tmp_path / "bad.png").write_bytes(b"no image")
    assert common_size([tmp_path / "bad.png", *files]) == side
