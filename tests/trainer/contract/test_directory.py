"""Directories appear whole or not at all, and never in the place of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from mint2m_trainer.contract.directory import new_directory, write_synced


class Stop(BaseException):
    """An interruption: not an `Exception`, as KeyboardInterrupt is not."""


def test_nothing_has_the_final_name_before_the_end(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "final"
    with new_directory(final) as folder:
        write_synced(folder / "a", b"1")
        (folder / "sub").mkdir()
        write_synced(folder / "sub" / "b", b"2")
        assert not final.exists()
    assert {str(path.relative_to(final)) for path in final.rglob("*")} == {"a", "sub", "sub/b"}
    assert [path.name for path in final.parent.iterdir()] == ["final"]


@pytest.mark.parametrize("fault", [OSError(28, "full"), KeyboardInterrupt(), Stop()])
def test_an_interruption_leaves_nothing(tmp_path: Path, fault: BaseException) -> None:
    with pytest.raises(type(fault)), new_directory(tmp_path / "final") as folder:
        write_synced(folder / "a", b"1")
        raise fault
    assert list(tmp_path.iterdir()) == []


def test_an_empty_directory_is_filled_and_a_full_one_refused(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    with new_directory(tmp_path / "final") as folder:
        write_synced(folder / "a", b"1")
    with pytest.raises(FileExistsError), new_directory(tmp_path / "final") as folder:
        pytest.fail("must not be entered")
    assert (tmp_path / "final" / "a").read_bytes() == b"1"


def test_a_link_in_the_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "final").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError), new_directory(tmp_path / "final"):
        pytest.fail("must not be entered")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_is_written_once_only(tmp_path: Path) -> None:
    write_synced(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        write_synced(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"1"
