// One JSON job a line on stdin, one JSON answer a line on stdout: {"accepted": true} or {"accepted": false, "code", "message"}.
// A job has `bundle` (JSON), `artifact` (base64, for message signatures), and either `root`, `identity` and `issuer` or
// `key` (PEM). Nothing here decides: the answer is @sigstore/verify's.

import { createPublicKey } from "node:crypto";
import { createInterface } from "node:readline";

import { bundleFromJSON } from "@sigstore/bundle";
import { TrustedRoot } from "@sigstore/protobuf-specs";
import { Verifier, toSignedEntity, toTrustMaterial } from "@sigstore/verify";

const NO_ROOT = { tlogs: [], certificateAuthorities: [], ctlogs: [], timestampAuthorities: [] };

function judge(job) {
  const root = TrustedRoot.fromJSON(job.root ?? NO_ROOT);
  const key = job.key && { publicKey: createPublicKey(job.key), validFor: () => true };
  const material = toTrustMaterial(root, () => key);
  const thresholds = job.root ? {} : { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 };
  const artifact = job.artifact === undefined ? undefined : Buffer.from(job.artifact, "base64");
  const entity = toSignedEntity(bundleFromJSON(job.bundle), artifact);
  const policy = job.root && {
    subjectAlternativeName: job.identity,
    extensions: { issuer: job.issuer },
  };
  new Verifier(material, thresholds).verify(entity, policy);
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer = { accepted: true };
  try {
    judge(JSON.parse(line));
  } catch (fault) {
    answer = { accepted: false, code: fault.code ?? fault.name, message: fault.message };
  }
  console.log(JSON.stringify(answer));
}
