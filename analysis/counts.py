"""Counts in symbols: sums of products of letters, as Table 1 prints them (``(8m+2)d+2m^2+4m``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

#: Letter -> exponent, sorted by letter, zeros left out.
Monomial = tuple[tuple[str, int], ...]
_TOKEN = re.compile(r"\s*(\d+|[A-Za-z]|[-+*/^()])")


@dataclass(frozen=True)
class Count:
    """A polynomial with rational coefficients; exponents may be negative. Equal polynomials are equal."""

    terms: tuple[tuple[Monomial, Fraction], ...]

    @classmethod
    def parse(cls, text: str) -> Count:
        """From text with implied multiplication; ``a/b`` divides by a number or a single letter.

        A ``ValueError`` for anything else.
        """
        tokens = _TOKEN.findall(text)
        if "".join(tokens) != re.sub(r"\s", "", text) or not tokens:
            raise ValueError(f"{text!r} is not a count")
        count, rest = _sum(tokens)
        if rest:
            raise ValueError(f"{text!r} is not a count (at {''.join(rest)!r})")
        return count

    def __add__(self, other: Count) -> Count:
        terms = dict(self.terms)
        for monomial, factor in other.terms:
            terms[monomial] = terms.get(monomial, Fraction(0)) + factor
        return _count(terms)

    def __mul__(self, other: Count) -> Count:
        terms: dict[Monomial, Fraction] = {}
        for a, x in self.terms:
            for b, y in other.terms:
                powers = dict(a)
                for letter, exponent in b:
                    powers[letter] = powers.get(letter, 0) + exponent
                monomial = tuple(sorted((k, v) for k, v in powers.items() if v))
                terms[monomial] = terms.get(monomial, Fraction(0)) + x * y
        return _count(terms)

    def at(self, values: Mapping[str, int]) -> Fraction:
        """The value for numbers in place of the letters."""
        total = Fraction(0)
        for monomial, factor in self.terms:
            for letter, exponent in monomial:
                factor *= Fraction(values[letter]) ** exponent
            total += factor
        return total

    def power(self, exponent: int) -> Count:
        """The count to a power; a negative one only of a single product."""
        if exponent < 0:
            if len(self.terms) != 1:
                raise ValueError("only a number or a product of letters divides")
            ((monomial, factor),) = self.terms
            inverse = Count(((tuple((k, -v) for k, v in monomial), 1 / factor),))
            return inverse.power(-exponent)
        result = ONE
        for _ in range(exponent):
            result = result * self
        return result

    def split(self, letter: str) -> tuple[Count, Count]:
        """(a, b) with self = a * letter + b and no letter in b; exponents of it other than 0 and 1 fail."""
        inside: dict[Monomial, Fraction] = {}
        outside: dict[Monomial, Fraction] = {}
        for monomial, factor in self.terms:
            exponent = dict(monomial).get(letter, 0)
            if exponent not in (0, 1):
                raise ValueError(f"{letter}^{exponent}")
            rest = tuple((k, v) for k, v in monomial if k != letter)
            (inside if exponent else outside)[rest] = factor
        return _count(inside), _count(outside)


def _count(terms: Mapping[Monomial, Fraction]) -> Count:
    return Count(tuple(sorted((monomial, factor) for monomial, factor in terms.items() if factor)))


ONE = Count((((), Fraction(1)),))
ZERO = Count(())
_MINUS = Count((((), Fraction(-1)),))


def _sum(tokens: list[str]) -> tuple[Count, list[str]]:
    total, sign = ZERO, ONE
    while True:
        term, tokens = _product(tokens)
        total = total + sign * term
        if not tokens or tokens[0] not in "+-":
            return total, tokens
        sign, tokens = (_MINUS if tokens[0] == "-" else ONE), tokens[1:]


def _product(tokens: list[str]) -> tuple[Count, list[str]]:
    result, divide = ONE, False
    while tokens and tokens[0] not in "+-)":
        if tokens[0] in "*/":
            divide, tokens = tokens[0] == "/", tokens[1:]
            continue
        factor, tokens = _atom(tokens)
        if tokens and tokens[0] == "^":
            factor, tokens = factor.power(int(tokens[1])), tokens[2:]
        result = result * (factor.power(-1) if divide else factor)
        divide = False
    return result, tokens


def _atom(tokens: list[str]) -> tuple[Count, list[str]]:
    head, rest = tokens[0], tokens[1:]
    if head == "(":
        inside, rest = _sum(rest)
        if rest[:1] != [")"]:
            raise ValueError("a bracket is not closed")
        return inside, rest[1:]
    if head.isdigit():
        return Count((((), Fraction(int(head))),)), rest
    return Count(((((head, 1),), Fraction(1)),)), rest
