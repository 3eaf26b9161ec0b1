"""The kernel language: a small typed layer over LLVM's text form in which loops read like Python.

Loops are ``with`` blocks, vectors have operators, memory is reached only through ``Buffer`` values
that know their extent, so that one switch (``check``) compiles every load and store with a bounds
check.  It must know nothing of convolutions, element types beyond their LLVM names, or settings.

Check mode: every buffer argument carries its extent and an offset in bytes, and every function has one
more argument, the error cell: word 0 receives the site number (from ``first_site`` on) of a failing
access, which is redirected to the scratch that follows, so that a faulty kernel neither traps nor corrupts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from polyconv.kernels.emitter import Emitter, Loop
from polyconv.kernels.parts import has_parts, load_parts, store_parts
from polyconv.kernels.signature import Callee, Int, Placed, Signature, arguments_of, pointed
from polyconv.kernels.values import BOOL, INT, POINTER, Buffer, Mask, Type, Value, vector

__all__ = ["BOOL", "INT", "Buffer", "Mask", "Module", "Type", "Value", "vector"]

S = TypeVar("S", bound=Signature)

ERROR_CELL_BYTES = 64 + 1024
"""Size of the error cell: a cache line for the site, then scratch for redirected accesses."""


class Module(Emitter):
    """A translation unit under construction: functions, then ``text()`` for LLVM.

    Parameters
    ----------
    check : bool
        Compile bounds checks (see the module's docstring).
    fma : bool
        Whether the target multiplies and adds in one instruction; else ``fma`` emits two.
    wide : int
        Bits of the widest vectors to use.
    first_site : int
        Number of the first access, in check mode.
    together : int
        Steps of a tile that stand in one turn of its loop.
    masked_loads : int
        Bytes of the narrowest lanes that a load of the target may leave out; 0 if it cannot.
    masked_stores : bool
        Whether a store of the target may leave lanes out; else they are stored by parts.
    """

    def __init__(self, *, check: bool = False, fma: bool = True, wide: int = 512, first_site: int = 1,
                 together: int = 1, masked_loads: int = 1, masked_stores: bool = True) -> None:  # fmt: skip
        super().__init__(fma=fma)
        self.check, self.wide, self.together = check, wide, together
        self._masked_loads, self.masked_stores = masked_loads, masked_stores
        self._first_site = first_site
        self.site_names: list[str] = []
        self._function = ""
        self.functions: dict[str, type[Signature]] = {}
        self._called: list[tuple[str, type[Signature]]] = []
        self._kept: dict[tuple[object, ...], Value] = {}

    # -- functions -------------------------------------------------------------------------------

    @contextmanager
    def function(self, name: str, signature: type[S]) -> Iterator[S]:
        """Define ``void name(...)``; yields the arguments of its signature."""
        if name in self.functions:
            raise ValueError(f"function {name} is defined twice")
        self.functions[name] = signature
        spelled: list[str] = []
        given: dict[str, Any] = {}
        for i, (argument, kind) in enumerate(arguments_of(signature).items()):
            if kind is Int:
                spelled.append(f"i64 %a{i}")
                given[argument] = Value(self, f"%a{i}", INT)
            else:
                spelled.append(f"ptr %a{i}")
                extent = offset = None
                if self.check:
                    spelled += [f"i64 %e{i}", f"i64 %o{i}"]
                    extent, offset = Value(self, f"%e{i}", INT), Value(self, f"%o{i}", INT)
                memory = Buffer(self, f"%a{i}", extent, offset)
                given[argument] = kind.read(self, memory) if issubclass(kind, Placed) else memory
        if self.check:
            spelled.append("ptr %cell")
        attributes = f'nounwind "prefer-vector-width"="{self.wide}" "min-legal-vector-width"="{self.wide}"'
        self._function = name
        self._line(f"define void @{name}({', '.join(spelled)}) {attributes} {{")
        self._start(self._fresh("entry"))
        yield signature(**given)
        self._line("  ret void")
        self._line("}")

    def text(self, triple: str) -> str:
        """The whole unit as LLVM's text form.

        Raises
        ------
        TypeError
            If a function of this unit was called that it does not define, or with another signature.
        """
        for name, signature in self._called:
            if self.functions.get(name) is not signature:
                raise TypeError(f"{name} is called with {signature.__name__}, and takes {self.functions.get(name)}")
        head = [f'target triple = "{triple}"', *self._declared.values()]
        return "\n".join(head + self._lines) + "\n"

    def call(self, target: str | Buffer | Callee[S], arguments: S) -> None:
        """Call a function of this unit by name, or one whose address was loaded from memory.

        A buffer argument is passed from its offset on; in check mode as the whole of it with that offset,
        so that negative strides may step back.

        Raises
        ------
        TypeError
            If the function takes another signature, or an argument is not what it says.
        """
        signature = type(arguments)
        if isinstance(target, Callee):
            if signature not in target.signatures:
                taken = " or ".join(s.__name__ for s in target.signatures)
                raise TypeError(f"a function that takes {taken} is called with {signature.__name__}")
            target = target.place
        spelled = []
        for name, kind in arguments_of(signature).items():
            value = getattr(arguments, name)
            if kind is Int and (isinstance(value, int) or (isinstance(value, Value) and value.type == INT)):
                spelled.append(f"i64 {self.spell(value, INT)}")
                continue
            memory = pointed(kind, value)
            if memory is None:
                raise TypeError(f"argument {name} of {signature.__name__} is a {kind.__name__}, not {value!r}")
            if self.check:
                assert memory.extent is not None
                spelled += [f"ptr {memory.base}", f"i64 {memory.extent.name}", f"i64 {memory.total().name}"]
            else:
                spelled.append(f"ptr {self._address(memory)}")
        if self.check:
            spelled.append("ptr %cell")
        if isinstance(target, str):
            self._called.append((target, signature))
            self._line(f"  call void @{target}({', '.join(spelled)})")
            return
        address = self._address(target)
        with self._there(address) if self.check else nullcontext():
            self._line(f"  call void {address}({', '.join(spelled)})")

    # -- control flow ----------------------------------------------------------------------------

    @contextmanager
    def loop(self, low: Value | int, high: Value | int, step: Value | int = 1, carry: Sequence[Any] = (),
             *, runs: bool = False) -> Iterator[Loop]:  # fmt: skip
        """Count ``index`` from low to high; ``carry`` holds start values that change from turn to turn.

        With ``runs`` the loop is known to turn at least once and is tested at its end.
        """
        head, body, leave = self._fresh("head"), self._fresh("body"), self._fresh("leave")
        before, start = self._block, self.spell(low, INT)
        first = [self._spell_carried(c) for c in carry]
        self._line(f"  br label %{head}")
        self._start(head)
        index = Value(self, f"%{self._fresh('i')}", INT)
        phis = [self._like(c, f"%{self._fresh('p')}") for c in carry]
        place = len(self._lines)
        self._line("")
        if not runs:
            self._line(f"  br i1 {(index < high).name}, label %{body}, label %{leave}")
            self._start(body)
        loop = Loop(index, phis)
        yield loop
        following = loop._following if loop._following is not None else phis
        assert len(following) == len(phis), "next() must give every carried value"
        spelled = [self._spell_carried(v) for v in following]
        increased = index + step
        if runs:
            again = increased < high
        rows = [f"  {index.name} = phi i64 [{start}, %{before}], [{increased.name}, %{self._block}]"]
        for phi, a, b in zip(phis, first, spelled, strict=True):
            name, type_ = (phi.total().name, INT) if isinstance(phi, Buffer) else (phi.name, phi.type)
            rows.append(f"  {name} = phi {type_} [{a}, %{before}], [{b}, %{self._block}]")
        self._lines[place] = "\n".join(rows)
        if runs:
            self._line(f"  br i1 {again.name}, label %{head}, label %{leave}")
            loop.results = following
        else:
            self._line(f"  br label %{head}")
            loop.results = phis
        self._start(leave)

    def _like(self, value: Any, name: str) -> Any:
        if isinstance(value, Buffer):
            return Buffer(self, value.base, value.extent, Value(self, name, INT), 0)
        return Value(self, name, value.type)

    def _spell_carried(self, value: Any) -> str:
        return value.total().name if isinstance(value, Buffer) else value.name

    def either(self, condition: Value, a: Buffer, b: Buffer) -> Buffer:
        """The place ``a`` where the condition holds, else ``b``."""
        base = self.select(condition, Value(self, a.base, POINTER), Value(self, b.base, POINTER))
        extent = None
        if a.extent is not None and b.extent is not None:
            extent = self.select(condition, a.extent, b.extent)
        return Buffer(self, base.name, extent, self.select(condition, a.total(), b.total()))

    # -- memory ----------------------------------------------------------------------------------

    def gather(self, type_: Type, source: Buffer, stride: Value, mask: Mask | None = None) -> Value:
        """Load a vector whose elements lie ``stride`` bytes apart.

        Lanes beyond a mask repeat lane 0; if it has a first lane it has one lane at least, and others are 0.
        """
        if type_.element == "half":
            return self.cast("bitcast", self.gather(type_.of("i16"), source, stride, mask), type_)
        vector_ = Value(self, "poison", type_)
        for i in range(type_.lanes):
            step = stride * i
            if mask is not None and mask.first is not None:
                step = stride * self.maximum(self.minimum(mask.count - 1, i), mask.first)
            elif mask is not None:
                step = self.select(mask.count > i, step, 0)
            one = self.load(type_.scalar, source + step if i or mask is not None else source)
            vector_ = self.emit(
                f"insertelement {type_} {vector_.name}, {type_.element} {one.name}, i32 {i}", type_
            )
        return vector_ if mask is None or mask.first is None else self.select(mask.bits, vector_, 0)

    def scatter(self, value: Value, target: Buffer, stride: Value | int, mask: Mask | None = None) -> None:
        """Store a vector's elements ``stride`` bytes apart; only the lanes of a mask, if there is one."""
        value = self.bits(value)
        for i in range(value.type.lanes):
            one = self.emit(f"extractelement {value.type} {value.name}, i32 {i}", value.type.scalar)
            place = target + stride * i if i else target
            if mask is None:
                self.store(one, place)
            else:
                with self.when(mask.count > i):
                    self.store(one, place)

    def load(self, type_: Type, source: Buffer, align: int = 1) -> Value:
        """Load a value; ``align`` in bytes is a promise about the address."""
        address = self._checked(source, type_.bytes, "load")
        return self.emit(f"load {type_}, ptr {address}, align {align}", type_)

    def kept(self, type_: Type, source: Buffer) -> Value:
        """Load what nobody writes while a function runs: LLVM would load it anew after each store of a block."""
        offset = None if source.offset is None else source.offset.name
        key = (self._block, type_, source.base, offset, source.constant)
        if key not in self._kept:
            self._kept[key] = self.load(type_, source)
        return self._kept[key]

    def store(self, value: Value, target: Buffer, align: int = 1) -> None:
        """Store a value."""
        address = self._checked(target, value.type.bytes, "store")
        self._line(f"  store {value.type} {value.name}, ptr {address}, align {align}")

    def prefetch(self, place: Buffer, *, writing: bool = False, far: bool = False) -> None:
        """Ask for the cache line of a place, to read or to write it; a hint that touches nothing, wherever it is.

        It goes to the nearest cache, or, ``far``, no nearer than the second.
        """
        full = "llvm.prefetch.p0"
        self._declared.setdefault(full, f"declare void @{full}(ptr, i32, i32, i32)")
        self._line(f"  call void @{full}(ptr {self._address(place)}, i32 {int(writing)}, i32 {2 if far else 3}, i32 1)")

    def rebase(self, place: Buffer) -> Buffer:
        """The same place as a pointer of its own, so that further offsets cost no addition; not in check mode."""
        return place if self.check else Buffer(self, self._address(place), None)

    def opaque(self, place: Buffer) -> Buffer:
        """The same place, of which LLVM does not see how a loop found it; not in check mode."""
        if self.check:
            return place
        return Buffer(self, self.emit(f"freeze ptr {self._address(place)}", INT).name, None)

    def address(self, place: Buffer) -> Value:
        """A place as a number, to see how it is aligned."""
        return self.emit(f"ptrtoint ptr {self._address(place)} to i64", INT)

    def load_first(self, type_: Type, source: Buffer, mask: Mask) -> Value:
        """Load the lanes of a mask, 0 elsewhere; memory behind the other lanes is not touched."""
        if type_.element == "half":
            return self.cast("bitcast", self.load_first(type_.of("i16"), source, mask), type_)
        masked = 0 < self._masked_loads <= type_.element_bytes or mask.first is not None
        if not masked and has_parts(type_):
            return load_parts(self, type_, source, mask.count)
        skipped = 0 if mask.first is None else mask.first * type_.element_bytes
        address = self._checked(source, mask.count * type_.element_bytes - skipped, "masked load", skipped)
        full = f"llvm.masked.load.{type_.suffix}.p0"
        self._declared.setdefault(full, f"declare {type_} @{full}(ptr, i32, {mask.bits.type}, {type_})")
        return self.emit(
            f"call {type_} @{full}(ptr {address}, i32 1, {mask.bits.type} {mask.bits.name}, {type_} zeroinitializer)",
            type_,
        )

    def store_first(self, value: Value, target: Buffer, mask: Mask) -> None:
        """Store the lanes of a mask; memory behind the other lanes is not touched."""
        if not self.masked_stores and mask.first is None and has_parts(value.type):
            store_parts(self, self.bits(value), target, mask.count)
            return
        skipped = 0 if mask.first is None else mask.first * value.type.element_bytes
        self.store_masked(value, target, mask.bits, mask.count * value.type.element_bytes - skipped, skipped)

    def store_masked(self, value: Value, target: Buffer, bits: Value, size: Value, skipped: Value | int = 0) -> None:
        """Store lanes whose bits are set, which lie in so many bytes behind those that are skipped."""
        type_ = (value := self.bits(value)).type
        address = self._checked(target, size, "masked store", skipped)
        full = f"llvm.masked.store.{type_.suffix}.p0"
        self._declared.setdefault(full, f"declare void @{full}({type_}, ptr, i32, {bits.type})")
        self._line(f"  call void @{full}({type_} {value.name}, ptr {address}, i32 1, {bits.type} {bits.name})")

    def broadcast(self, type_: Type, source: Buffer, align: int | None = None) -> Value:
        """Load one element into every lane; without ``align`` in bytes it is aligned to its size."""
        return self.splat(self.load(type_.scalar, source, align or type_.element_bytes), type_.lanes)

    def word(self, source: Buffer, index: Value | int = 0) -> Value:
        """Load a 64-bit integer from a table."""
        return self.load(INT, source + index * 8, 8)

    def buffer(self, source: Buffer, index: Value | int = 0) -> Buffer:
        """Load a buffer from a table: a pointer word and a word with its extent in bytes."""
        place = source + index * 8
        address = self._checked(place, 8, "pointer")
        pointer = self.emit(f"load ptr, ptr {address}, align 8", POINTER)
        extent = self.load(INT, place + 8, 8) if self.check else None
        return Buffer(self, pointer.name, extent)

    def clear(self, target: Buffer, size: int) -> None:
        """Fill a fixed number of bytes with zeros."""
        address = self._checked(target, size, "clear")
        full = "llvm.memset.inline.p0.i64"
        self._declared.setdefault(full, f"declare void @{full}(ptr, i8, i64, i1)")
        self._line(f"  call void @{full}(ptr {address}, i8 0, i64 {size}, i1 false)")

    def rows_place(self, memory: Buffer, step: Value | int, rows: Value | int, width: Value | int, what: str
                   ) -> tuple[str, str]:  # fmt: skip
        """Operands of an instruction that reads or writes rows of ``width`` bytes: place and step, checked."""
        plain = self._address(memory)
        if not self.check:
            return f"ptr {plain}", f"i64 {self.spell(step, INT)}"
        found = self._checked(memory, (rows - 1) * step + width, what)
        is_inside = self.emit(f"icmp eq ptr {found}, {plain}", BOOL)
        return f"ptr {found}", f"i64 {self.select(is_inside, step, 0).name}"

    # -- addresses -------------------------------------------------------------------------------

    def _address(self, place: Buffer) -> str:
        if place.offset is None and place.constant == 0:
            return place.base
        pointer = place.base
        if place.offset is not None:
            pointer = self.emit(f"getelementptr i8, ptr {pointer}, i64 {place.offset.name}", POINTER).name
        if place.constant:
            pointer = self.emit(f"getelementptr i8, ptr {pointer}, i64 {place.constant}", POINTER).name
        return pointer

    def _checked(self, place: Buffer, size: Value | int, what: str, skipped: Value | int = 0) -> str:
        """Address of an access of ``size`` bytes after some skipped; redirected if it does not fit, in check mode."""
        address = self._address(place)
        if not self.check:
            return address
        assert place.extent is not None
        offset = place.total() + skipped
        end = offset + size
        fits = self.emit(f"icmp ule i64 {end.name}, {place.extent.name}", BOOL)
        ordered = self.emit(f"icmp ule i64 {offset.name}, {end.name}", BOOL)
        good = fits & ordered
        if isinstance(size, Value):  # no lane active: nothing is touched, wherever the place is
            good = good | size.equals(0)
        bad, done = self._fresh("bad"), self._fresh("good")
        self._noted_unless(good, what, bad, done)
        self._line(f"  br label %{done}")
        self._start(done)
        spare = self.emit("getelementptr i8, ptr %cell, i64 64", POINTER)
        return self.select(good, Value(self, address, POINTER), spare).name

    def _noted_unless(self, good: Value, what: str, bad: str, done: str) -> None:
        """Go to ``done`` if all is good; else note the site in the error cell, at ``bad``, where code goes on."""
        site = self._first_site + len(self.site_names)
        self.site_names.append(f"{self._function}: {what}")
        self._line(f"  br i1 {good.name}, label %{done}, label %{bad}, !prof !0")
        self._start(bad)
        self._line(f"  store i64 {site}, ptr %cell, align 8")
        self._declared.setdefault("!0", '!0 = !{!"branch_weights", i32 1000, i32 1}')

    @contextmanager
    def _there(self, address: str) -> Iterator[None]:
        """A call of the function at an address, left out where a table has none; in check mode."""
        there = self.emit(f"icmp ne ptr {address}, null", BOOL)
        bad, call, done = self._fresh("bad"), self._fresh("good"), self._fresh("done")
        self._noted_unless(there, "call of a function that its table lacks", bad, call)
        self._line(f"  br label %{done}")
        self._start(call)
        yield
        self._line(f"  br label %{done}")
        self._start(done)
