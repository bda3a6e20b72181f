"""Makes what lies in this folder; see README.md.

python tests/vectors/make.py bases      run the trainer (needs the trainer extra, about two minutes)
python tests/vectors/make.py chain      run the seven stages of a promotion run (the same, some minutes)
python tests/vectors/make.py training   run an online training of two steps (the same, about a minute)
python tests/vectors/make.py training-carried   the same, its optimizer's moments carried from step to step
python tests/vectors/make.py training-prompts   the same with two prompts a step
python tests/vectors/make.py witnesses  sign those bases under a fresh private root
python tests/vectors/make.py cases      write every vector again from the bases
python tests/vectors/make.py check      say whether the committed vectors are the ones this script makes
"""

from __future__ import annotations

import sys

from maker import (
    cases_advantages,
    cases_chain,
    cases_chain_numbers,
    cases_chain_plan,
    cases_chain_policy,
    cases_inputs,
    cases_journal,
    cases_json,
    cases_moments,
    cases_numbers,
    cases_policy,
    cases_policy_demands,
    cases_policy_run,
    cases_prompts,
    cases_prompts_start,
    cases_ranks,
    cases_receipt,
    cases_right,
    cases_rollouts,
    cases_seal,
    cases_step,
    cases_training,
    cases_training_policy,
    cases_tree,
)
from maker.case import CASES, HERE, TRAININGS, check_chain, check_engine, check_training, committed, lay_out, write_case

#: Importing a module registers its vectors.
MODULES = (
    cases_tree,
    cases_seal,
    cases_json,
    cases_inputs,
    cases_ranks,
    cases_journal,
    cases_numbers,
    cases_step,
    cases_receipt,
    cases_policy,
    cases_policy_run,
    cases_policy_demands,
    cases_right,
    cases_chain,
    cases_chain_numbers,
    cases_chain_plan,
    cases_chain_policy,
    cases_advantages,
    cases_rollouts,
    cases_training,
    cases_moments,
    cases_training_policy,
    cases_prompts,
    cases_prompts_start,
)


def main(word: str) -> int:
    if word == "bases":
        from maker.bases import make_bases

        make_bases()
        return 0
    if word == "chain":
        from maker.bases_chain import make_chain

        make_chain()
        return 0
    if word in TRAININGS:
        from maker.bases_training import make_training

        make_training(word)
        return 0
    if word == "witnesses":
        from maker.witnesses import make_witnesses

        make_witnesses()
        return 0
    check_engine()
    check_chain()
    check_training()
    made = {name: lay_out(case) for name, case in CASES.items()}
    if word == "cases":
        for name in committed().keys() - made.keys():
            print(f"not made by this script, remove it by hand: {HERE / name}")
        for name, files in made.items():
            write_case(name, files)
        size = sum(len(raw) for files in made.values() for raw in files.values())
        print(f"{len(made)} vectors from {len(MODULES)} modules, {size:,} bytes")
        return 0
    there = committed()
    different = sorted(name for name in there.keys() | made.keys() if there.get(name) != made.get(name))
    print(f"{len(different)} differ: {', '.join(different)}" if different else f"{len(made)} as committed")
    return 1 if different else 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in (
        "bases",
        "chain",
        *TRAININGS,
        "witnesses",
        "cases",
        "check",
    ):
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1]))
