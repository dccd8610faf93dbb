"""From a request and a policy to a decision. Pure, apart from reading the registry's snapshot."""

from __future__ import annotations

from fmcore.dispatch.decision import Candidate, Decision, Verdict
from fmcore.dispatch.policy import Policy, Rule
from fmcore.dispatch.reasons import Reason
from fmcore.dispatch.registry import Backend, Impl, Snapshot
from fmcore.dispatch.request import Request

REFERENCE = "reference"
_DEVICE_CODES = frozenset({"device", "vendor", "arch", "world"})


def resolve(request: Request, policy: Policy, snapshot: Snapshot, named: str | None = None) -> Decision:
    """Choose who serves a request.

    Args:
        request: What is asked.
        policy: What is in force.
        snapshot: Backends and implementations.
        named: ``backend`` or ``backend/name`` from the call or a bound handle: strict.

    Returns:
        A decision that lists every candidate; its ``selected`` is None where nobody can serve.
    """
    rule = _rule_for(request, policy, snapshot)
    judged = [_judge(impl, request, policy, snapshot, named) for impl in snapshot.impls.get(request.op, ())]
    eligible = [c for c in judged if c.verdict == "eligible"]
    pool = sorted(eligible, key=lambda c: _order(c, request, policy, rule))
    order = {c.id: position for position, c in enumerate(pool)}
    if named is None and rule is not None and rule.strict:
        pool = [c for c in pool if c.backend in rule.backends]
    chosen = pool[0] if pool else None
    final = [_settle(c, chosen, rule, named) for c in judged]
    final += _absent(request, snapshot, named)
    final.sort(key=lambda c: (c.verdict != "selected", order.get(c.id, len(order)), c.backend, c.name))
    source = _source(chosen, rule, policy, named)
    return Decision(request, tuple(final), source, _fallback(chosen, final, rule, named))


def _rule_for(request: Request, policy: Policy, snapshot: Snapshot) -> Rule | None:
    """Return the rule that decides; on host tensors one whose backends serve no host tensors does not bind."""
    rule = policy.rule_for(request.op)
    if rule is None or request.device_type != "cpu":
        return rule
    for impl in snapshot.impls.get(request.op, ()):
        types = impl.caps.device_types
        if impl.backend in rule.backends and (types is None or "cpu" in types):
            return rule
    if any(b in snapshot.backends and snapshot.backends[b].meta.vendor in ("cpu", "any") for b in rule.backends):
        return rule
    return None


def _judge(impl: Impl, request: Request, policy: Policy, snapshot: Snapshot, named: str | None) -> Candidate:
    backend = snapshot.backends.get(impl.backend)
    if impl.backend in policy.block:
        return _candidate(
            impl,
            "disabled",
            Reason("blocked", f"backend {impl.backend!r} is blocked", fix="take it out of block= or FMCORE_BLOCK"),
        )
    if backend is not None and backend.state in ("unavailable", "broken", "blocked"):
        return _candidate(impl, _verdict(backend), _backend_reason(backend))
    if named is not None and named not in (impl.backend, impl.id):
        return _candidate(impl, "disabled", Reason("not_named", f"the call names {named!r}"))
    reasons = impl.caps.why_not(request)
    if impl.backend == REFERENCE and named is None and not policy.allow_reference:
        reasons = (
            *reasons,
            Reason(
                "permission",
                "the float64 reference is slow and is used by explicit permission only",
                fix="pass backend='reference' or set FMCORE_ALLOW_REFERENCE=1",
            ),
        )
        return _candidate(impl, "disabled", *reasons)
    return _candidate(impl, "unsupported", *reasons) if reasons else _candidate(impl, "eligible")


def _candidate(impl: Impl, verdict: Verdict, *reasons: Reason) -> Candidate:
    return Candidate(impl.backend, impl.name, verdict, reasons, impl)


def _order(candidate: Candidate, request: Request, policy: Policy, rule: Rule | None) -> tuple[object, ...]:
    impl = candidate.impl
    if impl is None:
        return ()
    named = rule.backends if rule else ()
    preference = named.index(impl.backend) if impl.backend in named else len(named)
    ranked = policy.rank(request, impl) if policy.rank is not None else 0
    return (preference, ranked, impl.band_rank, -impl.priority, impl.backend, impl.name)


def _settle(candidate: Candidate, chosen: Candidate | None, rule: Rule | None, named: str | None) -> Candidate:
    if candidate is chosen:
        return _candidate_as(candidate, "selected")
    if candidate.verdict != "eligible":
        return candidate
    if named is None and rule is not None and rule.strict and candidate.backend not in rule.backends:
        reason = Reason("not_named", f"{rule.source} is strict and names {', '.join(rule.backends)}", fix="drop strict")
        return _candidate_as(candidate, "disabled", reason)
    return _candidate_as(
        candidate, "not_preferred", *((Reason("order", f"{chosen.id} comes first"),) if chosen else ())
    )


def _candidate_as(candidate: Candidate, verdict: Verdict, *reasons: Reason) -> Candidate:
    return Candidate(candidate.backend, candidate.name, verdict, (*candidate.reasons, *reasons), candidate.impl)


def _verdict(backend: Backend) -> Verdict:
    return {"unavailable": "unavailable", "broken": "broken", "blocked": "disabled"}[backend.state]  # type: ignore[return-value]


def _backend_reason(backend: Backend) -> Reason:
    fixes = {"broken": "see its traceback in `fmcore doctor`", "blocked": "allow it in FMCORE_BLOCK or FMCORE_PLUGINS"}
    return Reason(backend.state, backend.reason, fix=fixes.get(backend.state, ""))


def _absent(request: Request, snapshot: Snapshot, named: str | None) -> list[Candidate]:
    """Backends whose implementations were never loaded, and implementations that failed to register."""
    present = {impl.backend for impl in snapshot.impls.get(request.op, ())}
    found = [
        Candidate(b.name, "", _verdict(b), (_backend_reason(b),))
        for b in snapshot.backends.values()
        if b.name not in present and b.state in ("unavailable", "broken", "blocked")
    ]
    found += [
        Candidate(
            b.backend, b.name, "broken", (Reason("broken", b.why.strip().splitlines()[-1], fix="see `fmcore doctor`"),)
        )
        for b in snapshot.broken
        if b.op in (request.op, "*")
    ]
    silent = named is not None and named in snapshot.backends and named not in present
    if silent and not any(c.backend == named for c in found):
        reason = Reason("op", f"backend {named!r} has no implementation of {request.op}")
        found.append(Candidate(str(named), "", "unsupported", (reason,)))
    return found


def _source(chosen: Candidate | None, rule: Rule | None, policy: Policy, named: str | None) -> str:
    if named is not None:
        return "call"
    if rule is not None and (rule.strict or (chosen is not None and chosen.backend in rule.backends)):
        return rule.source
    return "rank" if policy.rank is not None else "default"


def _fallback(chosen: Candidate | None, candidates: list[Candidate], rule: Rule | None, named: str | None) -> str:
    """Say which preferred candidate declared that it cannot serve, when another one does."""
    if chosen is None or chosen.impl is None or named is not None:
        return ""
    if rule is not None and chosen.backend not in rule.backends:
        wanted = [c for c in candidates if c.backend in rule.backends]
        why = "; ".join(f"{c.id}: {', '.join(r.text for r in c.reasons)}" for c in wanted)
        missing = why or f"{', '.join(rule.backends)} has no implementation of this op"
        return f"{rule.source} prefers {', '.join(rule.backends)}, but {chosen.id} serves this call ({missing})"
    for candidate in candidates:
        impl = candidate.impl
        if impl is None or candidate.verdict != "unsupported" or impl.band_rank >= chosen.impl.band_rank:
            continue
        if rule is not None and rule.backends.index(chosen.backend) == 0:
            continue
        if not _DEVICE_CODES & {reason.code for reason in candidate.reasons}:
            why = ", ".join(reason.text for reason in candidate.reasons)
            return f"{candidate.id} cannot serve this call ({why}); {chosen.id} serves it"
    return ""
