"""A plugin of pytest that prints the fault matrix: `nox -s faults`, or `pytest -p fault_matrix` with PYTHONPATH set so.

The rule: the matrix is written down here, fault by fault, and a fault whose test did not run, or ran in fewer phases
than it has, fails the session. An empty cell proves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

_ALL = 11  # phases of the exact profile

#: By test: the fault in words, and how many cases it has at least.
FAULTS: Mapping[str, tuple[str, int]] = {
    "test_an_interrupted_run_is_cleaned_up_completely": ("driver killed, or interrupted", 2 * _ALL),
    "test_a_killed_driver_leaves_nothing_in_the_cluster": ("driver killed, operator's cluster", 1),
    "test_a_driver_killed_between_creating_and_journalling_leaves_nothing": ("driver killed before a journal line", 7),
    "test_a_driver_killed_before_the_journal_has_an_id_leaves_nothing_in_the_cluster": (
        "the same, operator's cluster",
        3,
    ),
    "test_a_rank_that_is_killed_leaves_the_old_weights_and_a_failed_receipt": ("rank killed", _ALL),
    "test_a_rank_that_goes_wrong_stops_the_run_and_leaves_nothing": ("rank raises, lies, disagrees or hangs", 7),
    "test_a_bit_that_flips_in_a_resident_page_is_placed_by_chunk_layer_and_rank": ("bit flipped in a page", 1),
    "test_a_rank_whose_replica_is_another_after_the_step_is_named_and_the_run_refused": ("replica strays", 1),
    "test_a_full_disk_at_the_checkpoint_leaves_the_old_weights_and_a_failed_receipt": ("disk full", 4),
    "test_a_disk_that_turns_read_only_leaves_the_old_weights_and_a_journal_that_cleanup_closes": ("disk read-only", 3),
    "test_a_killed_raylet_stops_the_run_and_leaves_nothing": ("raylet killed", 3),
    "test_a_node_cut_off_stops_the_run_and_leaves_nothing_once_it_is_back": ("node cut off, reconnected", 3),
    "test_a_cable_that_is_out_for_a_moment_is_no_fault": ("cable out for a moment", 1),
    "test_a_lost_head_stops_the_run_and_cleanup_waits_for_its_successor": ("head lost", 3),
    "test_a_run_whose_own_ray_loses_its_head_says_so_and_leaves_nothing": ("head lost, the run's own Ray", 3),
    "test_a_hung_collective_is_named_with_the_rank_that_holds_it_up": ("collective hangs", 3),
    "test_a_slow_rank_within_the_limit_is_no_fault": ("slow rank", 3),
    "test_clocks_that_are_days_apart_prove_nothing_and_harm_nothing": ("clock skew", 1),
    "test_a_second_driver_of_the_same_plan_is_refused_and_the_first_goes_on": ("second driver", 1),
    "test_a_node_that_is_not_the_deployments_is_refused_before_anything_is_created": ("wrong image, or CPUs", 2),
    "test_another_number_of_accelerators_is_refused_before_anything_is_created": ("wrong accelerator count", 1),
    "test_two_live_records_of_one_address_are_refused_before_anything_is_created": ("duplicate address", 1),
    "test_a_node_that_came_back_leaves_a_stale_record_that_does_not_count": ("stale Ray record", 1),
}


class _Matrix:
    def __init__(self) -> None:
        self.cells: dict[str, list[tuple[str, str, float]]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name, _, case = report.nodeid.rpartition("::")[2].partition("[")
        if name in FAULTS and (report.when == "call" or report.outcome != "passed"):
            self.cells[name].append((case.removesuffix("]") or "-", report.outcome, report.duration))

    def faults(self) -> Iterator[str]:
        """Rows that lack a cell."""
        for name, (words, least) in FAULTS.items():
            reached = sum(outcome != "skipped" for _, outcome, _ in self.cells[name])
            if reached < least:
                yield f"{words}: {reached} of {least} cells reached"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and any(self.faults()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("fault matrix")
        for name, (words, _) in FAULTS.items():
            for case, outcome, seconds in self.cells[name] or [("-", "not reached", 0.0)]:
                terminalreporter.line(f"{words:<40} {case:<40} {outcome:<12} {seconds:6.1f} s")
        for fault in self.faults():
            terminalreporter.line(fault, red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Matrix())
