"""The fonts of the site, cut out of what Python packages carry: nothing is asked of another host.

STIX Two Math (SIL Open Font License) comes with ziamath, Manrope (the same) with font-manrope.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

FONTS = {
    "math": ("ziamath", "fonts/STIXTwoMath-Regular.ttf"),
    "text": ("font_manrope", "files/Manrope-VariableFont_wght.ttf"),
}
LATIN = ((0x20, 0x17F), (0x2C6, 0x2DC), (0x2010, 0x203F), (0x20A0, 0x20BF), (0x2190, 0x2193))
# Greek, powers and indices, arrows, operators, brackets; of the letters of mathematics the slanted
# ones alone, which a browser takes for a single letter. Manrope's Greek is hard to tell from Latin.
SIGNS = (
    (0x300, 0x30C), (0x370, 0x3FF), (0x2010, 0x205F), (0x2070, 0x209C), (0x2100, 0x218B),
    (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2308, 0x230B), (0x25CF, 0x25CF), (0x27E6, 0x27EF),
    (0x1D434, 0x1D467), (0x1D6E2, 0x1D71B),
)  # fmt: skip
RANGES = {"text": LATIN, "math": LATIN + SIGNS}


def narrow(font: TTFont) -> None:
    """Make taller roots as wide as the smallest: Chromium keeps room for the widest behind any."""
    root = font.getBestCmap()[ord("√")]
    variants = font["MATH"].table.MathVariants
    made = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(root)]
    taller = [one.VariantGlyph for one in made.MathGlyphVariantRecord]
    taller += [one.glyph for one in made.GlyphAssembly.PartRecords]
    width = font["hmtx"][root][0]
    for glyph in taller:
        times = width / font["hmtx"][glyph][0]
        font["glyf"][glyph].coordinates.scale((times, 1))
        font["glyf"][glyph].recalcBounds(font["glyf"])
        font["hmtx"][glyph] = (width, font["glyf"][glyph].xMin)


def cut(name: str, folder: Path) -> None:
    """Write one font, without what the site does not show."""
    package, inside = FONTS[name]
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    options = subset.Options()
    options.flavor, options.notdef_outline, options.name_IDs = "woff", True, ["*"]
    options.layout_features = ["kern", "mark", "mkmk", "ssty", "tnum"]
    font = subset.load_font(str(Path(found.origin).parent / inside), options)
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=[one for low, high in RANGES[name] for one in range(low, high + 1)])
    cutter.subset(font)
    if "MATH" in font:
        narrow(font)
    folder.mkdir(parents=True, exist_ok=True)
    subset.save_font(font, str(folder / f"{name}.woff"), options)
