"""A star stands only where everything before it has one owner; versions are compared by their numbers."""

from __future__ import annotations

import itertools

import pytest

from mint2m_verify.policy.patterns import width_fault
from mint2m_verify.policy.versions import order_of
from mint2m_verify.sigstore_bundle.identity import matches


@pytest.mark.parametrize(
    "pattern",
    [
        "https://github.com/acme/*",
        "https://github.com/acme/tool/.github/workflows/release.yml@refs/tags/v*",
        "https://gitlab.example.com/group/sub/project//.gitlab-ci.yml@refs/heads/*",
        "spiffe://example.org/ns/*",
        "release@example.com",
        "https://github.com/acme/tool",
        "anything that is exact",
    ],
)
def test_a_pattern_with_one_owner_is_taken(pattern: str) -> None:
    assert width_fault(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "h*",
        "https:*",
        "https://*",
        "https://github*",  # github.evil.example
        "https://github.com*",  # github.com.evil.example
        "https://github.com/*",
        "https://github.com//*",
        "https://github.com/acme*",  # acme-evil
        "https://github.com/acme?*",
        "https://github.com/?acme/*",
        "https://github.com/#acme/*",
        "https://github.com/./acme/*",
        "https://github.com/acme/../*",
        "https:///acme/x/*",
        "release@example.com*",
        "release@*",
        "mailto:release@*",
        "a*b",
        "**",
        "https://[/acme/*",
    ],
)
def test_a_pattern_that_strangers_match_is_too_wide(pattern: str) -> None:
    assert width_fault(pattern) is not None


def test_a_pattern_matches_its_own_beginning_and_nothing_beside_it() -> None:
    assert matches("https://a/b/*", "https://a/b/c@d")
    assert not matches("https://a/b/*", "https://a/bb/c")
    assert not matches("https://a/b/*", "https://A/b/c")
    assert not matches("https://a/b", "https://a/b/")
    assert not matches("a+b", "aab")


def test_versions_are_ordered_by_their_numbers_and_a_final_one_is_after_its_candidates() -> None:
    ascending = ["0.1.0", "0.2.0a1", "0.2.0b1", "0.2.0rc1", "0.2.0rc10", "0.2.0", "0.9.9", "0.10.0", "1.0.0", "10.0.0"]
    for older, newer in itertools.combinations(ascending, 2):
        a, b = order_of(older), order_of(newer)
        assert a is not None and b is not None and a < b, (older, newer)


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.3-rc1", "01.2.3", "1.2.3 ", "1.2.3\n", "1.2.٣", "latest"]
)
def test_what_is_no_version_has_no_place_in_the_order(text: str) -> None:
    assert order_of(text) is None
