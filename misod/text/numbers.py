"""Numbers that the grammars misread, written so that they read them: dates, versions, ranges, money, units."""

import re

from misod.text.rule import rule

_MONTHS = (
    "January February March April May June July August September October November December".split()
)  # the grammars know them by these names
# Whose number is a version even with one stop in it; 3.11 of anything else is a decimal.
_VERSIONED = (
    "Python|Node|Node\\.js|Java|PHP|Ruby|Rust|Go|Swift|Perl|Django|PyTorch|NumPy|Linux|Ubuntu|Debian|macOS|iOS|iPadOS|"
    "watchOS|Android|Windows|Chrome|Firefox|Safari|kernel|release|Release|build|Build"
)
_PART = r"\d{1,6}"


def _month(number: str) -> str | None:
    return _MONTHS[int(number) - 1] if 1 <= int(number) <= 12 else None


def _timestamp(match: re.Match) -> str:
    """2024-03-15T14:30:00Z as March 15 2024 at 14:30 UTC; seconds only where there are any."""
    month, day = _month(match["month"]), int(match["day"])
    if not month or not 1 <= day <= 31:
        return r"\0"
    said = f"{month} {day} {match['year']} at {_clock(match)}"
    zone = match["zone"] or ""
    if zone in ("Z", "+00:00", "+0000"):
        return f"{said} UTC"
    if zone:
        hours, minutes = int(zone[1:3]), int(zone[-2:]) if len(zone) > 3 else 0
        said += f" UTC {'plus' if zone[0] == '+' else 'minus'} {hours}" + f" {minutes}" * bool(minutes)
    return said


def _clock(match: re.Match) -> str:
    hour, minute, second = match["hour"], match["minute"], match["second"] or "00"
    if minute != "00":
        said = f"{hour}:{minute}"
    elif int(hour):
        said = f"{int(hour)} o'clock" if int(hour) <= 12 else f"{int(hour)} hundred"
    else:
        said = "midnight"
    return said if second == "00" else f"{said} and {int(second)} second{'s' * (int(second) != 1)}"


def _year_month(match: re.Match) -> str:
    month = _month(match[2])
    return f"{month} {match[1]}" if month else r"\0"


def _version(match: re.Match) -> str:
    """v2.0-rc1 as version 2 point 0 rc 1. Windows 11 and V8 stay."""
    word, number, rest = match["word"].strip(), match["number"], match["rest"] or ""
    if "." not in number and word != "v":
        return r"\0"
    said = f"{'version' if word in ('v', 'V', 'ver.') else word} {' point '.join(number.split('.'))}"
    return said + "".join(f" {part}" for part in re.findall(r"[A-Za-z]+|\d+", rest))


def _three_parts(match: re.Match) -> str:
    """2.10.3; a date and an address are read rightly as they are."""
    parts = match.group().split(".")
    if len(parts) == 4 and all(int(part) < 256 for part in parts):
        return r"\0"
    if len(parts) == 3 and len(parts[2]) == 4 and int(parts[0]) <= 31 and int(parts[1]) <= 12:
        return r"\0"
    return " point ".join(parts)


def _phone(match: re.Match) -> str:
    """Digit by digit, a rest between groups."""
    groups = re.findall(r"\d+", match.group())
    plus = "plus " if match.group().startswith("+") else ""
    return plus + ", ".join(" ".join(group) for group in groups)


def _grouped(match: re.Match) -> str:
    """The grammars read 10000 digit by digit, and 10,000 as a number."""
    return f"{int(match.group().replace(' ', '')):,}"


def _hexadecimal(match: re.Match) -> str:
    return f"zero x {' '.join(match.group()[2:])}"


def _house(match: re.Match) -> str:
    """221B as two twenty-one B, 105A as one oh five A."""
    first, rest, letter = match.groups()
    return f"{first} {'oh ' + rest[1] if rest[0] == '0' else rest} {letter}"


def _power(match: re.Match) -> str:
    power = match[1].translate(_RAISED)
    return {"2": " squared", "3": " cubed"}.get(power, f" to the power of {power.replace('-', 'minus ')}")


def _scientific(match: re.Match) -> str:
    power = ("minus " if match[2] == "-" else "") + match[3].lstrip("0").rjust(1, "0")
    return rf"\1 times 10 to the power of {power}"


_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_MAGNITUDES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion", "t": "trillion", "tn": "trillion"}
_CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds", "¥": "yen"}
_CURRENCIES |= {"₹": "rupees", "₽": "roubles", "₩": "won", "₺": "lira", "₿": "bitcoin", "₴": "hryvnias", "₪": "shekels"}

# Units that the grammars spell or leave, one of each. Case counts: MB is no mb.
_UNITS = {
    "KB": "kilobyte", "kB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "PB": "petabyte",
    "KiB": "kibibyte", "MiB": "mebibyte", "GiB": "gibibyte", "TiB": "tebibyte",
    "kbps": "kilobit per second", "Mbps": "megabit per second", "Gbps": "gigabit per second",
    "fps": "frame per second", "rpm": "revolution per minute", "dpi": "dot per inch", "px": "pixel",
    "m": "meter", "mm": "millimeter", "cm": "centimeter", "nm": "nanometer", "µm": "micrometer", "μm": "micrometer",
    "mL": "milliliter", "ml": "milliliter", "L": "liter", "mg": "milligram", "µg": "microgram", "μg": "microgram",
    "ms": "millisecond", "µs": "microsecond", "μs": "microsecond", "ns": "nanosecond", "s": "second", "sec": "second",
    "min": "minute", "hr": "hour", "hrs": "hour", "h": "hour", "km": "kilometer", "mi": "mile",
    "W": "watt", "kW": "kilowatt", "MW": "megawatt", "GW": "gigawatt", "Wh": "watt hour", "kWh": "kilowatt hour",
    "V": "volt", "mAh": "milliamp hour", "mA": "milliamp", "dB": "decibel", "Hz": "hertz", "kHz": "kilohertz",
    "MHz": "megahertz", "GHz": "gigahertz", "kcal": "kilocalorie", "cal": "calorie", "kJ": "kilojoule",
    "kPa": "kilopascal", "hPa": "hectopascal", "°": "degree", "°C": "degree Celsius", "°F": "degree Fahrenheit",
}  # fmt: skip
_PER = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "hr": "hour", "day": "day", "week": "week"}
_PER |= {"month": "month", "year": "year", "m²": "square meter", "m³": "cubic meter", "mL": "milliliter", "L": "liter"}
_PER |= {"kg": "kilogram", "km": "kilometer"}
_UNIT_NAMES = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
_PER_NAMES = "|".join(sorted(_PER, key=len, reverse=True))


def _unit(match: re.Match) -> str:
    one, per = _UNITS[match["unit"]], match["per"]
    first, *rest = one.split()
    if match[1] != "1" and not one.endswith("hertz"):
        if rest and rest[-1] == "hour" and "per" not in rest:
            rest = [*rest[:-1], "hours"]  # watt hours
        else:
            first += "s"
    return rf"\1 {' '.join([first, *rest])}" + (f" per {_PER[per]}" if per else "")


RULES = (
    rule(
        "timestamp",
        r"\b(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<hour>[012]?\d):(?P<minute>[0-5]\d)"
        r"(?::(?P<second>[0-5]\d)(?:[.,]\d{1,9})?)?(?P<zone>Z|[+\-]\d\d(?::?\d\d)?)?(?![\w:])",
        _timestamp,
        "-",
    ),
    rule("date with a zero", r"\b(\d{4})-(0[1-9]|1[0-2])(?![\d\-])", _year_month, "-"),
    rule(
        "version",
        rf"(?<![\w.])(?P<word>[Vv]ersion\s|[Vv]|ver\.\s|(?:{_VERSIONED})\s)(?P<number>{_PART}(?:\.{_PART}){{0,5}})"
        r"(?P<rest>[-.]?(?:rc|alpha|beta|dev|pre|post|a|b)[-.]?\d{0,3})?(?!\w|\.\d|:\d|[-/]\d)",
        _version,
    ),
    rule("three parts", r"(?<![\w.$€£])\d{1,6}(?:\.\d{1,6}){2,5}(?![\w]|\.\d)", _three_parts, "."),
    rule(
        "phone",
        r"(?<![\w.\-/])(?:\+\d{1,3}[ .\-])?(?:\(\d{3}\)[ ]?|\d{3}[ .\-])\d{3}[ .\-]\d{4}(?![\w\-])"
        r"|(?<![\w.\-/$€£])\d{3}-\d{4}(?![\w\-])|(?<!\w)\+\d{1,3}(?:[ \-]\d{2,4}){2,5}(?![\w\-])",
        _phone,
    ),
    rule("long code", r"(?<![\w\-])\d{1,7}(?:-\d{1,7}){3,8}(?:-[Xx])?(?![\w\-])", _phone, "-"),
    rule("long number", r"(?<![\d.,])\d{16,}+", lambda m: " ".join(m[0])),
    rule("thousands", r"(?<![\d.,])(\d{1,3})((?: \d{3}){2,4}| 000)(?![\d.,]\d|\w)", _grouped),
    rule("round number", r"(?<![\w.,$€£¥\-])[1-9]\d{1,11}000(?!\w|[.,\-]\d)", _grouped),
    rule(
        "house",
        r"(?<![\w$€£.,\-])([1-9])(\d[1-9]|[1-9]0)([A-H])\b(?=\s+[A-Z][a-z]|[.,;!?]|$)",
        _house,
    ),
    rule("hexadecimal", r"(?<!\w)0[xX][0-9A-Fa-f]{1,64}\b", _hexadecimal, "xX"),
    rule("times", r"\b(24/7|50/50|9/11|20/20|7/11)\b", lambda m: m[0].replace("/", " "), "/"),
    rule("season", r"\b((?:19|20)\d\d)/(\d\d)\b(?!/)", r"\1 to \2", "/"),
    rule("feet and inches", r"(?<![\w.])(\d{1,2})['′]\s?(\d{1,2})(?:\"|″|'')", r"\1 feet \2 inches", "'′"),
    rule("feet", r"(?<=\d)′", " feet", "′"),
    rule("inches", r"(?<=\d)(?:″| in\.(?= [a-z]))", " inches", "″i"),
    rule("ratio", r"(?<![\d:.,])(\d{1,3}):(\d)(?![\d:])", r"\1 to \2", ":"),
    rule("range", r"(?<=[\d%°CFkKmM])\s?[–—‑]\s?(?=[$€£]?\d)", " to ", "–—‑"),
    rule("range of words", r"(?<=\w)–(?=\w)", " to ", "–"),
    rule("score", r"(?<![\w.,:/\-$])(\d{1,4})-(\d{1,4})(?![\w/:]|-|\.\d|,\d)", r"\1 to \2", "-"),
    rule("subtraction", r"(?<=\d)\s[-−]\s(?=\d)", " minus ", "-−"),
    rule("minus", r"(?<![\w)])−\s?(?=[\d$€£.])|(?<![\w)\-])-(?=[$€£])", "minus ", "−-"),
    rule("scientific", r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+\-]?)(\d{1,3})\b", _scientific, "eE"),
    rule("power", r"(?<=[\w)])\^(-?\w{1,6})\b", _power, "^"),
    rule("raised", r"(?<!\dm)(?<!km)(?<! m)(?<!cm)(?<!mm)(?<!ft)(?<!mi)(?<=[\w)])([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", _power),
    rule("dollars of", r"\b(?:US|CA|AU)\$(?=\d)", "$", "$"),
    rule(
        "money in short",
        r"([$€£¥])(\d[\d,]*(?:\.\d+)?)\s?(k|K|m|M|b|B|bn|Bn|t|tn|T|thousand)\b",
        lambda m: rf"\2 {_MAGNITUDES.get(m[3].lower(), m[3])} {_CURRENCIES[m[1]]}",
        "$€£¥",
    ),
    rule("other money", r"([₹₽₩₺₿₴₪])\s?(\d[\d,.]*\d|\d)", lambda m: rf"\2 {_CURRENCIES[m[1]]}", "₹₽₩₺₿₴₪"),
    rule("cents", r"(?<=\d)\s?¢", " cents", "¢"),
    rule("degrees", r"(?<=\d)\s?°\s?(?=[CF]\b)", "°", "°"),
    rule(
        "unit",
        rf"(?<![\w.,$€£])(\d[\d,.]*)(?<=\d)(?!s)\s?(?P<unit>{_UNIT_NAMES})(?:/(?P<per>{_PER_NAMES}))?(?![\w²³'’/])",
        _unit,
    ),
    rule("times as much", r"(?<![\w.])(\d+(?:\.\d+)?)[x×](?![\w×])", r"\1 times", "x×"),
    rule("by", r"(?<=\d)\s?[x×]\s?(?=\d)", " by ", "x×"),
    rule("number sign", r"#(?=\d)", "number ", "#"),
    rule("about", r"(?<![\w~])[~≈]\s?(?=[$€£]?\d)", "about ", "~≈"),
)
