"""Discovery and the guarded loader: each plugin stands or falls by itself."""

from __future__ import annotations

import contextlib
import io
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata as importlib_metadata
from typing import TYPE_CHECKING, Any

from fmcore import config
from fmcore.dispatch.metadata import SPEC_VERSION, BackendMeta, read_package
from fmcore.dispatch.probes import Evidence, ProbeEnv, ProbeReport
from fmcore.dispatch.registry import REGISTRY, Backend, BrokenImpl, Impl
from fmcore.errors import PluginError

if TYPE_CHECKING:
    import pluggy

    from fmcore.dispatch.decision import Decision

GROUP = "fmcore.backends"
_ABSENT = object()
_DISTRIBUTIONS: dict[int, tuple[Any, str]] = {}


@dataclass(slots=True)
class Plugin:
    """One installed plugin. ``loaded`` turns True after the one attempt to import it."""

    name: str
    value: str
    distribution: str
    metas: tuple[BackendMeta, ...]
    module: Any = None
    loaded: bool = False

    @property
    def location(self) -> str:
        """File of the plugin's package, where it is known."""
        found = getattr(self.module, "__file__", None)
        return str(found) if found else self.value


class PluginManager:
    """Finds plugins, reads their metadata, loads them when first needed and fills the registry."""

    def __init__(self, env: ProbeEnv | None = None) -> None:
        self.env = env or ProbeEnv()
        self.plugins: list[Plugin] = []
        self.failures: dict[str, Backend] = {}
        self._unread: dict[str, Backend] = {}
        self.discovered = False
        self._hooks: pluggy.PluginManager | None = None

    @property
    def manager(self) -> pluggy.PluginManager:
        """The hooks, made when the first plugin is loaded: importing fmcore loads none."""
        if self._hooks is None:
            import pluggy

            from fmcore.dispatch import hookspecs

            self._hooks = pluggy.PluginManager(hookspecs.PROJECT)
            self._hooks.add_hookspecs(hookspecs.Hooks)
        return self._hooks

    # -- discovery: metadata only, no plugin is imported ----------------------------------------------------------

    def discover(self) -> None:
        """Read the metadata of every installed plugin, once. No plugin package is imported."""
        with REGISTRY.lock:
            if self.discovered:
                return
            self.discovered = True
            settings = config.current()
            if settings.plugin_autoload:
                points = importlib_metadata.entry_points(group=GROUP)
                for point in sorted(points, key=lambda p: (_distribution(p), p.name)):
                    self._discover_one(point, settings.plugins)
            self._discover_reference()
            config.warn_unknown(v.name for b in REGISTRY.snapshot.backends.values() for v in b.meta.env)

    def _discover_reference(self) -> None:
        """Take in the oracle: it comes with the core, behind every other backend."""
        meta = BackendMeta("reference", "any", "reference")
        plugin = Plugin("reference", "fmcore.reference._plugin", "fmcore (built in)", (meta,))
        self.plugins.append(plugin)
        self._admit(plugin, meta)

    def _discover_one(self, point: importlib_metadata.EntryPoint, allowed: Sequence[str] | None) -> None:
        distribution = _distribution(point)
        if allowed is not None and point.name not in allowed:
            reason = f"plugin {point.name!r} is not in FMCORE_PLUGINS={','.join(allowed)!r}"
            self._fail(point, distribution, "blocked", reason)
            return
        try:
            metas = read_package(point.value)
        except PluginError as error:
            self._fail(point, distribution, "broken", str(error), traceback.format_exc())
            return
        except OSError as error:
            self._fail(
                point,
                distribution,
                "broken",
                f"metadata of {point.value!r} cannot be read: {error}",
                traceback.format_exc(),
            )
            return
        plugin = Plugin(point.name, point.value, distribution, metas)
        self.plugins.append(plugin)
        for meta in metas:
            self._admit(plugin, meta)

    def _fail(
        self, point: importlib_metadata.EntryPoint, distribution: str, state: Any, reason: str, trace: str = ""
    ) -> None:
        backend = Backend(BackendMeta(point.name), distribution, point.value, state, reason, trace)
        other = REGISTRY.snapshot.backends.get(point.name)
        if other is None:
            REGISTRY.put_backend(backend)
            self._unread[point.name] = backend
        else:
            self.failures[f"{point.name} ({distribution})"] = backend

    def _admit(self, plugin: Plugin, meta: BackendMeta) -> None:
        other = REGISTRY.snapshot.backends.get(meta.name)
        unread = self._unread.pop(meta.name, None)
        if unread is not None and unread.state == "broken":
            # An entry point whose metadata cannot be read has no right to a backend's name.
            self.failures[f"{meta.name} ({unread.distribution})"] = unread
            other = None
        if other is not None and other.state != "blocked":
            reason = (
                f"two distributions declare backend {meta.name!r}: {other.distribution} and {plugin.distribution}; "
                "uninstall one, or keep one out with FMCORE_PLUGINS"
            )
            REGISTRY.put_backend(replace(other, state="broken", reason=reason))
            return
        if not meta.accepts_spec():
            have = ".".join(map(str, SPEC_VERSION))
            reason = (
                f"written for plugin API {meta.spec_version}, this fmcore has {have}; "
                f"install a matching version of {plugin.distribution}"
            )
            self._put(plugin, meta, "unavailable", reason)
            return
        likely, evidence = meta.look(self.env)
        if not likely and meta.name in re.split(r"[,;=\s]+", config.current().backend):
            likely, evidence = True, (*evidence, Evidence("FMCORE_BACKEND", meta.name, "for"))
        if likely:
            self._put(
                plugin, meta, "possible", "its signs were found; it is probed at the first call", evidence=evidence
            )
        else:
            missing = "; ".join(f"no {item.probe}" for item in evidence)
            self._put(plugin, meta, "unavailable", f"no sign of it on this machine: {missing}", evidence=evidence)

    def _put(self, plugin: Plugin, meta: BackendMeta, state: Any, reason: str, trace: str = "", **more: Any) -> None:
        if meta.name in config.current().block:
            state, reason, trace = "blocked", "blocked by FMCORE_BLOCK", ""
        REGISTRY.put_backend(Backend(meta, plugin.distribution, plugin.location, state, reason, trace, **more))

    # -- loading: import, deep probe, registration; guarded per plugin --------------------------------------------

    def load_all(self) -> None:
        """Load every plugin that shows a sign of being usable here."""
        self.discover()
        if all(plugin.loaded for plugin in self.plugins):
            return
        with REGISTRY.lock:
            for plugin in self.plugins:
                if not plugin.loaded:
                    self._load(plugin)
            self._check_hook_names()

    def register(
        self, plugin: Any, metas: Sequence[BackendMeta] | None = None, origin: str = ""
    ) -> tuple[Backend, ...]:
        """Take a plugin object in by hand; the same path as an installed one."""
        self.discover()
        name = getattr(plugin, "__name__", type(plugin).__name__)
        declared = tuple(metas or getattr(plugin, "fmcore_metadata", ()) or read_package(str(name)))
        distribution = origin or f"registered by hand: {name}"
        with REGISTRY.lock:
            for meta in declared:
                held = REGISTRY.snapshot.backends.get(meta.name)
                if held is not None:
                    raise PluginError(
                        f"backend {meta.name!r} exists already, from {held.distribution}; "
                        f"{distribution} must choose another name, or unregister_backend({meta.name!r}) first"
                    )
            entry = Plugin(str(name), str(name), distribution, declared, module=plugin)
            self.plugins.append(entry)
            for meta in declared:
                self._admit(entry, meta)
            self._load(entry)
            self._check_hook_names()
            return tuple(REGISTRY.snapshot.backends[meta.name] for meta in declared)

    def unregister(self, name: str) -> None:
        """Take a plugin out by the name of one of its backends."""
        with REGISTRY.lock:
            entry = next((p for p in self.plugins if any(m.name == name for m in p.metas)), None)
            if entry is None:
                raise PluginError(f"there is no backend {name!r}; there are {sorted(REGISTRY.snapshot.backends)}")
            self.plugins.remove(entry)
            if entry.module is not None and self.manager.is_registered(entry.module):
                self.manager.unregister(entry.module)
            for meta in entry.metas:
                REGISTRY.remove_backend(meta.name)

    def _load(self, plugin: Plugin) -> None:
        plugin.loaded = True
        backends = REGISTRY.snapshot.backends
        live = [
            meta
            for meta in plugin.metas
            if backends[meta.name].state == "possible" and backends[meta.name].distribution == plugin.distribution
        ]
        if not live:
            return
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                if plugin.module is None:
                    plugin.module = importlib_metadata.EntryPoint(plugin.name, plugin.value, GROUP).load()
                if not self.manager.is_registered(plugin.module):
                    self.manager.register(plugin.module, name="+".join(meta.name for meta in plugin.metas))
                reports = self._probe(plugin, live)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the guarded place: whatever a plugin raises is its own state, not the host's)
            for meta in live:
                self._put(
                    plugin,
                    meta,
                    "broken",
                    f"{type(error).__name__} while it was loaded: {error}",
                    traceback.format_exc(),
                )
            return
        for meta in live:
            report = reports[meta.name]
            self._put(
                plugin,
                meta,
                "available" if report.available else "unavailable",
                report.reason,
                evidence=(*backends[meta.name].evidence, *report.evidence),
                claims=report.claims,
            )
        self._register_impls(plugin, printed)

    def _probe(self, plugin: Plugin, live: Sequence[BackendMeta]) -> Mapping[str, ProbeReport]:
        found = self._call(plugin, "fmcore_probe", env=self.env, deep=True)
        if found is _ABSENT:
            return {meta.name: ProbeReport(available=True, reason="it has no probe of its own") for meta in live}
        reports = dict(found)
        missing = [meta.name for meta in live if not isinstance(reports.get(meta.name), ProbeReport)]
        if missing:
            raise PluginError(f"fmcore_probe of {plugin.name!r} gave no ProbeReport for {missing}")
        return reports

    def _register_impls(self, plugin: Plugin, printed: io.StringIO) -> None:
        usable = {m.name: m for m in plugin.metas if REGISTRY.snapshot.backends[m.name].state == "available"}
        if usable:
            from fmcore import ops
            from fmcore.dispatch.registrar import Registrar

            names = tuple(m.name for m in plugin.metas)
            registrar = Registrar(usable, names, {})
            try:
                # The ops need torch: where it is missing, loading goes on and this plugin's impls are marked.
                registrar = Registrar(usable, names, ops.feature_names())
                with contextlib.redirect_stdout(printed):
                    self._call(plugin, "fmcore_register_impls", registrar=registrar, spec_version=SPEC_VERSION)
            except (Exception, SystemExit):  # noqa: BLE001 (the guarded place: what was registered before stays, the failure is shown)
                for name in usable:
                    registrar.broken.append(BrokenImpl("*", name, "fmcore_register_impls", traceback.format_exc()))
            REGISTRY.add_impls(registrar.impls, registrar.broken)
        if printed.getvalue():
            note = f"it printed while it was loaded: {printed.getvalue().strip()[:200]!r}"
            for meta in plugin.metas:
                backend = REGISTRY.snapshot.backends[meta.name]
                REGISTRY.put_backend(replace(backend, reason=f"{backend.reason}; {note}"))

    def _call(self, plugin: Plugin, hook: str, **arguments: Any) -> Any:
        """Call one plugin's own implementation of a hook with the arguments that it names."""
        for impl in getattr(self.manager.hook, hook).get_hookimpls():
            if impl.plugin is plugin.module:
                return impl.function(*(arguments[name] for name in impl.argnames))
        return _ABSENT

    def doctor(self, backend: str) -> Mapping[str, str]:
        """Return a backend's own lines for ``fmcore doctor``."""
        plugin = next((p for p in self.plugins if any(m.name == backend for m in p.metas)), None)
        if plugin is None or plugin.module is None:
            return {}
        lines = self._call(plugin, "fmcore_doctor", backend=backend)
        return {} if lines is _ABSENT else dict(lines)

    def on_decision(self, decision: Decision) -> None:
        """Show a new decision to the plugins that want to see it."""
        for impl in self.manager.hook.fmcore_on_decision.get_hookimpls():
            impl.function(decision)

    def _check_hook_names(self) -> None:
        """Mark plugins whose hook functions match no hook: a misspelt hook would otherwise do nothing in silence."""
        for plugin in self.plugins:
            if plugin.module is None:
                continue
            known = {name for name, hook in vars(self.manager.hook).items() if hook.spec is not None}
            wrong = sorted(name for name in _hook_names(plugin.module) if name not in known)
            if not wrong:
                continue
            for meta in plugin.metas:
                backend = REGISTRY.snapshot.backends[meta.name]
                if backend.state == "broken":
                    continue
                self._drop_impls(meta.name)
                reason = f"hooks {wrong} match none of fmcore's; the hooks are {sorted(known)}"
                REGISTRY.put_backend(replace(backend, state="broken", reason=reason))

    @staticmethod
    def _drop_impls(name: str) -> None:
        backend = REGISTRY.snapshot.backends[name]
        REGISTRY.remove_backend(name)
        REGISTRY.put_backend(backend)


def _hook_names(module: Any) -> list[str]:
    """Names of the functions marked with ``hookimpl``."""
    return [name for name in dir(module) if hasattr(getattr(module, name, None), "fmcore_impl")]


def _distribution(point: importlib_metadata.EntryPoint) -> str:
    """Name and version of the distribution that an entry point is of; its metadata is parsed once."""
    dist = getattr(point, "dist", None)
    if dist is None:
        return "unknown distribution"
    known = _DISTRIBUTIONS.get(id(dist))
    if known is None or known[0] is not dist:
        fields = dist.metadata
        known = _DISTRIBUTIONS[id(dist)] = (dist, f"{fields['Name']} {fields['Version']}")
    return known[1]


def impls_of(backend: str) -> tuple[Impl, ...]:
    """Return every implementation that a backend registered."""
    return tuple(i for group in REGISTRY.snapshot.impls.values() for i in group if i.backend == backend)


MANAGER = PluginManager()
