"""Plan, deployment, profile, fixture and doctor: what binds what, signed with the right key and wrong."""

from __future__ import annotations

from maker.case import vector
from maker.forge import DEPLOYMENT, SESSIONS, Run, read_base

PLAN = "plan.json"
PROFILE = "inputs/profile.json"
FIXTURE = "inputs/fixture.json"
PAYLOAD = "inputs/payload.json"
ROLLOUT = "inputs/rollout.json"

CLAIM = "2m_execution_only_not_numerical_correctness"


def replanned(run: Run) -> None:
    """The plan has its change; everything from its address on is made right."""
    run.redo_address()
    run.follow(after="plan")


def refixed(run: Run) -> None:
    """The fixture has its change; everything from the deployment on is made right."""
    run.redo_deployment()
    run.follow(after="inputs")


@vector("plan-at-another-address", "The plan was edited and kept its old address.", "binding.plan-address")
def _(run: Run) -> None:
    run.set(PLAN, "/run_id", "another")
    run.set("receipt.json", "/run_id", "another")
    run.follow(after="plan")


@vector("plan-input-changed", "The plan names another rollout than the one beside it.", "binding.hash-mismatch")
def _(run: Run) -> None:
    run.set(PLAN, "/inputs/rollout/sha256", "2" * 64)
    replanned(run)


@vector(
    "plan-input-elsewhere", "The plan's reference leads to another place of the directory.", "binding.path-mismatch"
)
def _(run: Run) -> None:
    run.set(PLAN, "/inputs/rollout/path", "inputs/payload.json")
    replanned(run)


@vector(
    "plan-claims-more",
    "The plan claims the two-million scope for a CPU run, and so does everything else.",
    "binding.plan-differs",
)
def _(run: Run) -> None:
    run.set(PLAN, "/claim_scope", CLAIM)
    run.set("receipt.json", "/claim_scope", CLAIM)
    run.redo_address()
    run.follow(after="plan")
    run.redo_seal(lambda made: made["predicate"].update(claim_scope=CLAIM))


@vector("plan-claims-numbers", "A plan claims numerical correctness for an execution.", "binding.plan-differs")
def _(run: Run) -> None:
    run.set(PLAN, "/claim_scope", "reference_cpu_numerical_correctness")
    replanned(run)


@vector("plan-other-class", "A plan on GPU hardware that the deployment does not have.", "binding.plan-differs")
def _(run: Run) -> None:
    run.set(PLAN, "/deployment/hardware_class", "h20-4x8")
    replanned(run)


@vector("plan-without-finalize", "The plan leaves a phase out.", "binding.plan-differs")
def _(run: Run) -> None:
    run.edit(PLAN, lambda plan: plan["phases"].remove("finalize"))
    replanned(run)


@vector("plan-of-another-profile", "The profile inside the plan is not the profile beside it.", "binding.plan-differs")
def _(run: Run) -> None:
    run.set(PLAN, "/profile/optimizer/lr", 0.5)
    replanned(run)


@vector("plan-fewer-chunks", "The plan says that the prefix has fewer chunks.", "binding.plan-differs")
def _(run: Run) -> None:
    run.set(PLAN, "/prefix_chunks", 3)
    replanned(run)


@vector(
    "plan-other-source",
    "The plan's source is not that of the runtime identity.",
    "binding.plan-differs",
    also=("session.identity-mismatch",),
)
def _(run: Run) -> None:
    run.set(PLAN, "/source_sha256", "3" * 64)
    replanned(run)


@vector(
    "plan-actor-twice",
    "Two ranks under one actor name.",
    "session.actor-mismatch",
    also=("placement.mismatch", "journal.not-created"),
)
def _(run: Run) -> None:
    name = run.json(PLAN)["placement"]["ranks"][0]["actor"] + "x"
    for rank in (0, 1):
        run.set(PLAN, f"/placement/ranks/{rank}/actor", name)
    replanned(run)


@vector("plan-two-ranks-in-a-slot", "Two ranks share a slot, in plan and records alike.", "placement.mismatch")
def _(run: Run) -> None:
    run.set(PLAN, "/placement/ranks/1/slot", 0)
    run.set(SESSIONS, "/ranks/1/placement/planned_slot", 0)
    run.set(SESSIONS, "/ranks/1/placement/observed_slot", 0)
    replanned(run)


@vector("plan-bundle-unbound", "A bundle that is bound to no node.", "placement.mismatch")
def _(run: Run) -> None:
    run.set(PLAN, "/placement/bundles/0/resources", [])
    replanned(run)


@vector("deployment-without-room", "The deployment has fewer slots than the run has ranks.", "placement.too-few-slots")
def _(run: Run) -> None:
    run.set(DEPLOYMENT, "/accelerators_per_node", 1)
    run.set(PLAN, "/deployment/accelerators_per_node", 1)
    run.follow(after="inputs")


@vector("rank-on-another-node", "A rank was seen on another node than planned.", "placement.mismatch")
def _(run: Run) -> None:
    run.set(SESSIONS, "/ranks/1/placement/observed_node_ip", "10.0.0.9")
    run.follow(after="manifests")


@vector("ranks-on-one-accelerator", "Two ranks of one node were given the same accelerator.", "placement.mismatch")
def _(run: Run) -> None:
    for rank in (0, 1):
        run.set(SESSIONS, f"/ranks/{rank}/placement/observed_accelerator", "gpu-0")
    run.follow(after="manifests")


@vector("deployment-of-another-fixture", "The deployment names another fixture.", "binding.deployment-differs")
def _(run: Run) -> None:
    run.set(DEPLOYMENT, "/fixture/sha256", "4" * 64)
    run.follow(after="inputs")


@vector("deployment-of-a-validation", "A deployment for validation, carried out as training.", "binding.plan-differs")
def _(run: Run) -> None:
    run.set(DEPLOYMENT, "/kind", "validation")
    run.follow(after="inputs")


@vector("profile-uneven-topology", "Context parallelism that is not the world size.", "binding.topology")
def _(run: Run) -> None:
    run.set(PROFILE, "/topology/context_parallel", 1)
    run.follow()


@vector(
    "profile-of-many-ranks",
    "Five thousand ranks, two of which left records: the report stays readable.",
    "session.rank-missing",
    also=("placement.too-few-slots", "verify.more-findings"),
)
def _(run: Run) -> None:
    for member in ("world_size", "context_parallel", "expert_parallel"):
        run.set(PROFILE, f"/topology/{member}", 5000)
    run.follow()


@vector(
    "identity-of-another-source",
    "The runtime identity was exchanged after planning.",
    "binding.hash-mismatch",
    also=("binding.plan-differs",),
)
def _(run: Run) -> None:
    run.set("inputs/runtime-identity.json", "/source_sha256", "5" * 64)
    run.redo_seal()


@vector("doctor-blocked", "The doctor found a blocker and passed all the same.", "doctor.blocked")
def _(run: Run) -> None:
    run.set("doctor.json", "/checks/3/status", "blocked")
    run.follow(after="records")


@vector("doctor-of-another-scope", "The doctor looked at a checkout, not at the run.", "doctor.scope")
def _(run: Run) -> None:
    run.set("doctor.json", "/scope", "checkout")
    run.follow(after="records")


@vector("doctor-of-another-run", "The doctor's record of another run, of another model and profile.", "doctor.scope")
def _(run: Run) -> None:
    run.files["doctor.json"] = read_base("run-one-rank")["doctor.json"]
    run.follow(after="records")


@vector("doctor-of-nothing-named", "A doctor's record that does not say which profile it looked at.", "doctor.scope")
def _(run: Run) -> None:
    run.set(
        "doctor.json", "/checks", [check for check in run.json("doctor.json")["checks"] if check["id"] != "profile"]
    )
    run.follow(after="records")


@vector(
    "inputs-of-another-run",
    "The inputs of another run: genuine, bound to each other, and not the planned ones.",
    "binding.hash-mismatch",
)
def _(run: Run) -> None:
    other = read_base("run-one-rank")
    for path in (FIXTURE, PAYLOAD, ROLLOUT, PROFILE, DEPLOYMENT):
        run.files[path] = other[path]
    run.redo_seal()


# The fixture: hashes, then meaning.


@vector("fixture-payload-changed", "The payload was changed after the fixture was made.", "fixture.hash-mismatch")
def _(run: Run) -> None:
    text = run.json(PAYLOAD)["prompt_text"]
    run.set(PAYLOAD, "/prompt_text", text.replace("tar", "tea", 1))
    run.follow(after="inputs")


@vector(
    "fixture-rollout-longer",
    "The rollout has another size than the fixture says.",
    "fixture.size-mismatch",
    also=("fixture.hash-mismatch",),
)
def _(run: Run) -> None:
    run.edit(ROLLOUT, lambda rollout: rollout["responses"][0].append(10))
    run.follow(after="inputs")


@vector("fixture-for-another-model", "The fixture is for another model.", "fixture.model-mismatch")
def _(run: Run) -> None:
    run.set(FIXTURE, "/model/manifest_sha256", "6" * 64)
    refixed(run)


@vector("fixture-for-another-revision", "The fixture is for another revision.", "fixture.revision-mismatch")
def _(run: Run) -> None:
    run.set(FIXTURE, "/model/revision", "another")
    refixed(run)


@vector("fixture-for-another-profile", "The fixture is for another profile.", "fixture.profile-mismatch")
def _(run: Run) -> None:
    run.set(FIXTURE, "/profile_sha256", "7" * 64)
    refixed(run)


@vector(
    "fixture-for-another-policy",
    "The fixture is for another adapter than the one given.",
    "fixture.policy-mismatch",
    base="run-one-rank",
)
def _(run: Run) -> None:
    run.set(FIXTURE, "/policy_sha256", "8" * 64)
    refixed(run)


@vector(
    "given-adapter-not-here",
    "The deployment gives an adapter, and the run does not hold it: started from what?",
    "binding.file-absent",
)
def _(run: Run) -> None:
    run.set(DEPLOYMENT, "/adapter", "policy")
    run.follow(after="inputs")


@vector("fixture-path-not-adjacent", "The fixture's payload lies in a directory below.", "fixture.path-not-adjacent")
def _(run: Run) -> None:
    run.set(FIXTURE, "/payload/path", "below/payload.json")
    refixed(run)


@vector("fixture-shape", "The fixture says that a response is longer than it is.", "fixture.shape-mismatch")
def _(run: Run) -> None:
    run.set(FIXTURE, "/shape/response_tokens", [9, 10])
    refixed(run)


@vector(
    "fixture-other-prompt", "The prompt's tokens are not the bytes of the payload's text.", "fixture.prompt-not-payload"
)
def _(run: Run) -> None:
    run.set(ROLLOUT, "/prompt_tokens/100", 33)
    run.follow()


@vector(
    "fixture-token-outside-vocabulary",
    "A response token that the model does not have.",
    "fixture.token-outside-vocabulary",
    also=("fixture.token-not-byte",),
)
def _(run: Run) -> None:
    run.set(ROLLOUT, "/responses/0/8", 256)
    run.set("artifacts/scores.json", "/responses/0/tokens/8", 256)
    run.follow()


@vector(
    "fixture-of-a-larger-vocabulary",
    "The fixture is for a vocabulary that the model does not have.",
    "fixture.vocabulary-mismatch",
)
def _(run: Run) -> None:
    run.set(FIXTURE, "/shape/vocab_size", 512)
    refixed(run)


@vector(
    "fixture-reward-nobody-earned",
    "Rewards changed sides: the wrong answer is rewarded.",
    "fixture.reward-mismatch",
    also=("grpo.reward-mismatch",),
)
def _(run: Run) -> None:
    run.set(ROLLOUT, "/rewards", [1, -1])
    run.follow()


@vector(
    "fixture-response-edited",
    "A response was edited to the right answer; its reward stayed.",
    "fixture.reward-mismatch",
    also=("grpo.reward-mismatch",),
)
def _(run: Run) -> None:
    run.set(ROLLOUT, "/responses/0/8", ord("4"))
    run.set("artifacts/scores.json", "/responses/0/tokens/8", ord("4"))
    run.follow()


@vector(
    "fixture-truth-edited",
    "The ground truth was edited to the wrong answer; rewards stayed.",
    "fixture.reward-mismatch",
)
def _(run: Run) -> None:
    run.set(PAYLOAD, "/ground_truth", "2")
    run.follow()


@vector("fixture-positive-logprob", "An old log-prob above zero.", "fixture.logprob-positive", base="run-one-rank")
def _(run: Run) -> None:
    run.set(ROLLOUT, "/old_logprobs/0/0", 0.5)
    run.follow()


@vector("fixture-rows-missing", "Three responses, old log-probs of two.", "fixture.shape-mismatch", base="run-one-rank")
def _(run: Run) -> None:
    three(run)
    run.follow()


def three(run: Run) -> None:
    """A third response everywhere but among the old log-probs, whose rows are then too few."""
    for path, pointer in ((ROLLOUT, "responses"), (ROLLOUT, "rewards")):
        run.edit(path, lambda value, pointer=pointer: value[pointer].append(value[pointer][1]))

    def scored(scores: dict) -> None:
        scores["responses"].append({**scores["responses"][1], "response": 2})
        scores["rewards"].append(scores["rewards"][1])
        scores["advantages"].append(scores["advantages"][1])

    run.edit("artifacts/scores.json", scored)


@vector(
    "fixture-check-other-size",
    "`fixture check` on a payload that was changed.",
    "fixture.hash-mismatch",
    command=("fixture", "check", "{run}/inputs/fixture.json"),
)
def _(run: Run) -> None:
    run.files[PAYLOAD] = run.files[PAYLOAD].replace(b"tar", b"tea", 1)
