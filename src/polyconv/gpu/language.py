"""The kernel language of the GPU: the CPU's values and activations, and threads, shared memory, matrix products.

Loops and conditions are ``with`` blocks, what changes is a ``Variable`` (LLVM keeps it in a register), what is unrolled
is a loop of Python.  Shared memory is addressed by 32-bit offsets in bytes, through PTX that only this file spells.
It must know nothing of convolutions.

PTX is NVIDIA's "Parallel Thread Execution ISA"; names of instructions are those of its version 8.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from polyconv.dataclass import dataclass
from polyconv.kernels.emitter import Emitter
from polyconv.kernels.values import BOOL, Type, Value

__all__ = ["BOOL", "F32", "I32", "I64", "Kernel", "Pointer", "Type", "Value", "Variable", "both"]

I32, I64, F32 = Type("i32"), Type("i64"), Type("float")
_GLOBAL = Type("ptr addrspace(1)")
_MAP = Type("ptr")
MAP = "map"
"""Name of the argument that is a tensor map: 128 bytes that the driver makes of an array, told by value."""

_REGISTER = {"i32": "r", "i64": "l", "float": "f", "double": "d", "ptr addrspace(1)": "l", "ptr": "l"}
"""How inline PTX names the register of a type."""


def both(a: Value | None, b: Value | None) -> Value | None:
    """Both conditions, where None always holds."""
    return b if a is None else a if b is None else a & b


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place in global memory: an argument of the kernel, and bytes from there."""

    argument: str
    offset: Value | None = None
    constant: int = 0

    def __add__(self, step: Value | int) -> Pointer:
        if isinstance(step, int):
            return Pointer(self.argument, self.offset, self.constant + step)
        return Pointer(self.argument, step if self.offset is None else self.offset + step, self.constant)


class Variable:
    """A value that changes."""

    def __init__(self, k: Kernel, start: Value) -> None:
        self._k, self.type, self._place = k, start.type, f"%{k._fresh('var')}"
        k._variables.append(f"  {self._place} = alloca {self.type}")
        self.set(start)

    def get(self) -> Value:
        """Its value now."""
        return self._k.emit(f"load {self.type}, ptr {self._place}", self.type)

    def set(self, value: Value | float) -> None:
        """Give it another value."""
        self._k._line(f"  store {self.type} {self._k.spell(value, self.type)}, ptr {self._place}")


class Kernel(Emitter):
    """One kernel under construction.

    Parameters
    ----------
    name : str
        Of the function.
    arguments : sequence of str
        Names of pointers to global memory.
    threads : int
        Of a block.
    numbers : sequence of str
        Names of 64-bit numbers, arguments behind the pointers.
    has_map : bool
        Whether a tensor map is the argument behind the pointers.
    cluster : int
        Blocks, neighbours along x, that reach each other's shared memory.
    shared : int
        Bytes of shared memory.
    blocks : int
        Blocks that one multiprocessor is to hold, which caps the registers of a thread.
    """

    def __init__(self, name: str, arguments: Sequence[str], threads: int, *, numbers: Sequence[str] = (),
                 has_map: bool = False, cluster: int = 1, shared: int = 0, blocks: int = 1) -> None:  # fmt: skip
        super().__init__(fma=True)
        self.name, self.arguments, self.threads = name, tuple(arguments), threads
        self.has_map = has_map
        self.numbers = {one: Value(self, f"%{one}", I64) for one in numbers}
        self.cluster, self.shared, self.blocks = cluster, shared, blocks
        self._variables: list[str] = []
        self.thread = self._special("tid.x")
        self.block = tuple(self._special(f"ctaid.{axis}") for axis in "xyz")
        self.base = self.emit("ptrtoint ptr addrspace(3) @shared to i32", I32)

    def _special(self, register: str) -> Value:
        return self.target_intrinsic(f"llvm.nvvm.read.ptx.sreg.{register}", I32, "", ())

    # -- values and control flow -------------------------------------------------------------------

    def value(self, number: Value | float, type_: Type = I32) -> Value:
        """A number as a value."""
        return number if isinstance(number, Value) else self.constant(type_, number)

    def variable(self, start: Value | float, type_: Type = I32) -> Variable:
        """A value that changes, and what it starts as."""
        return Variable(self, self.value(start, type_))

    def pick(self, condition: Value, a: Value | int, b: Value | int) -> Value:
        """``a`` where the condition holds, else ``b``; 32-bit numbers."""
        return self.select(condition, self.value(a), b)

    @contextmanager
    def only(self, condition: Value | None) -> Iterator[None]:
        """Run the block if a condition holds; None always does."""
        if condition is None:
            yield
            return
        with self.when(condition):
            yield

    @contextmanager
    def loop(self, start: Value | int, end: Value | int, step: int = 1) -> Iterator[Value]:
        """Count from start to end, a 32-bit number."""
        at = self.variable(start)
        head, body, leave = self._fresh("head"), self._fresh("body"), self._fresh("leave")
        self._line(f"  br label %{head}")
        self._start(head)
        index = at.get()
        self._line(f"  br i1 {(index < end).name}, label %{body}, label %{leave}")
        self._start(body)
        yield index
        at.set(index + step)
        self._line(f"  br label %{head}")
        self._start(leave)

    def vector(self, values: Sequence[Value]) -> Value:
        """Values as one vector."""
        type_, name = Type(values[0].type.element, len(values)), "poison"
        for i, one in enumerate(values):
            name = self.emit(f"insertelement {type_} {name}, {one.type} {one.name}, i32 {i}", type_).name
        return Value(self, name, type_)

    def elements(self, whole: Value) -> list[Value]:
        """The values of a vector, or the one value."""
        if not whole.type.lanes:
            return [whole]
        scalar = whole.type.scalar
        return [
            self.emit(f"extractelement {whole.type} {whole.name}, i32 {i}", scalar) for i in range(whole.type.lanes)
        ]

    # -- global memory -----------------------------------------------------------------------------

    def _at(self, place: Pointer) -> str:
        name = f"%{place.argument}"
        if place.offset is not None:
            offset = place.offset
            name = self.emit(f"getelementptr i8, {_GLOBAL} {name}, {offset.type} {offset.name}", _GLOBAL).name
        if place.constant:
            name = self.emit(f"getelementptr i8, {_GLOBAL} {name}, i64 {place.constant}", _GLOBAL).name
        return name

    def address(self, place: Pointer) -> Value:
        """A place as a value, of which one may be selected."""
        return Value(self, self._at(place), _GLOBAL)

    def load(self, type_: Type, place: Pointer, align: int | None = None) -> Value:
        """Load what no thread of this kernel writes; ``align`` in bytes is a promise, the type's size by default."""
        return self.emit(
            f"load {type_}, {_GLOBAL} {self._at(place)}, align {align or type_.bytes}, !invariant.load !0", type_
        )

    def store(self, value: Value, place: Pointer, align: int | None = None) -> None:
        """Store a value."""
        self._line(
            f"  store {value.type} {value.name}, {_GLOBAL} {self._at(place)}, align {align or value.type.bytes}"
        )

    # -- inline PTX --------------------------------------------------------------------------------

    def ptx(self, text: str, results: Sequence[Type] = (), operands: Sequence[Value | Pointer | int] = (), *,
            tied: Sequence[Value] = (), pure: bool = False) -> list[Value]:  # fmt: skip
        """Emit an instruction of PTX; results, then operands, are its ``$0``, ``$1`` and so on.

        Parameters
        ----------
        tied : sequence of Value
            What the results hold before, one each.
        pure : bool
            Whether it only computes: else it is neither moved nor dropped, and memory may change.
        """
        constraints = [f"={_REGISTER[str(t)]}" for t in results]
        given = []
        for operand in operands:
            if isinstance(operand, Pointer):
                constraints.append("l")
                given.append(f"{_GLOBAL} {self._at(operand)}")
                continue
            one = self.value(operand)
            constraints.append(_REGISTER[str(one.type)])
            given.append(f"{one.type} {one.name}")
        for i, one in enumerate(tied):
            constraints.append(str(i))
            given.append(f"{one.type} {one.name}")
        if not pure:
            constraints.append("~{memory}")
        kinds = ", ".join(str(t) for t in results)
        whole = "void" if not results else kinds if len(results) == 1 else f"{{{kinds}}}"
        effect = "" if pure else "sideeffect "
        call = f'call {whole} asm {effect}"{text}", "{",".join(constraints)}"({", ".join(given)}) #1'
        if not results:
            self._line(f"  {call}")
            return []
        if len(results) == 1:
            return [self.emit(call, results[0])]
        found = self.emit(call, Type(whole))
        return [self.emit(f"extractvalue {whole} {found.name}, {i}", t) for i, t in enumerate(results)]

    # -- shared memory -----------------------------------------------------------------------------

    def load_shared(self, address: Value, offset: int = 0, count: int = 1, element: Type = F32) -> list[Value]:
        """Load one, two or four elements of 4 or 8 bytes that lie together."""
        names = ",".join(f"${i}" for i in range(count))
        wide, braces = (f".v{count}", f"{{{names}}}") if count > 1 else ("", names)
        kind = _SPELLED[element.element]
        return self.ptx(f"ld.shared{wide}.{kind} {braces}, [${count}+{offset}];", [element] * count, [address])

    def store_shared(self, address: Value, values: Sequence[Value], offset: int = 0) -> None:
        """Store one, two or four elements together."""
        names = ",".join(f"${i + 1}" for i in range(len(values)))
        wide, braces = (f".v{len(values)}", f"{{{names}}}") if len(values) > 1 else ("", names)
        kind = _SPELLED[values[0].type.element]
        self.ptx(f"st.shared{wide}.{kind} [$0+{offset}], {braces};", (), [address, *values])

    def load_neighbour(self, address: Value, rank: int, count: int, element: Type = F32) -> list[Value]:
        """Load elements at an address of shared memory, in that of another block of the cluster."""
        (there,) = self.ptx("mapa.shared::cluster.u32 $0, $1, $2;", [I32], [address, rank], pure=True)
        names = ",".join(f"${i}" for i in range(count))
        wide, braces = (f".v{count}", f"{{{names}}}") if count > 1 else ("", names)
        kind = _SPELLED[element.element]
        return self.ptx(f"ld.shared::cluster{wide}.{kind} {braces}, [${count}];", [element] * count, [there])

    def copy(self, target: Value, source: Pointer | Value, size: Value | int, offset: int = 0, *,
             piece: int = 16) -> None:  # fmt: skip
        """Begin to copy a piece of 4, 8 or 16 bytes to shared memory; zeros take the place of those beyond ``size``."""
        through = "cg" if piece == 16 else "ca"
        self.ptx(
            f"cp.async.{through}.shared.global [$0+{offset}], [$1], {piece}, $2;", (), [target, source, size]
        )

    def commit(self) -> None:
        """Make one group of the copies begun since the last."""
        self.ptx("cp.async.commit_group;")

    def wait(self, groups: int) -> None:
        """Wait until no more groups of copies than these, the last ones, are under way."""
        self.ptx(f"cp.async.wait_group {groups};")

    def barrier(self) -> None:
        """Wait for all threads of the block; what they wrote to shared memory is then seen."""
        self.ptx("bar.sync 0;")

    def cluster_barrier(self) -> None:
        """Wait for all threads of the cluster."""
        self.ptx("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;")

    def proxy_fence(self) -> None:
        """Let the units that read shared memory by descriptor see what this thread wrote or copied there."""
        self.ptx("fence.proxy.async.shared::cta;")

    # -- copies by the copy engine -----------------------------------------------------------------

    def barrier_begin(self, address: Value, arrivals: int) -> None:
        """Make 8 bytes of shared memory a barrier that so many arrivals, and all bytes expected, complete."""
        self.ptx(f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", (), [address])

    def barriers_begun(self) -> None:
        """Let the copy engine see barriers that were made."""
        self.ptx("fence.mbarrier_init.release.cluster;")
        self.ptx("fence.proxy.async;")

    def barrier_wait(self, address: Value, parity: Value) -> None:
        """Wait until the phase of a barrier with this parity, 0 or 1, is complete."""
        self.ptx(
            "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra done; bra again; "
            "done: }", (), [address, parity],
        )  # fmt: skip

    def barrier_expect(self, address: Value, size: int) -> None:
        """Arrive at a barrier that so many bytes complete, too."""
        self.ptx(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {size};", (), [address])

    def barrier_arrive(self, address: Value) -> None:
        """Arrive at a barrier."""
        self.ptx("mbarrier.arrive.shared::cta.b64 _, [$0];", (), [address])

    def copy_bulk(self, target: Value, source: Pointer, size: int, barrier: Value) -> None:
        """Begin to copy bytes that lie together to shared memory; they complete a barrier."""
        self.ptx(
            f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], {size}, [$2];", (),
            [target, source, barrier],
        )  # fmt: skip

    def copy_box(self, target: Value, at: Sequence[Value], barrier: Value) -> None:
        """Begin to copy a box of the array that the tensor map describes; what lies outside becomes zeros."""
        rank = len(at)
        places = ", ".join(f"${1 + i}" for i in range(rank))
        self.ptx(
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [$0], "
            f"[${rank + 2}, {{{places}}}], [${rank + 1}];", (), [target, *at, barrier, Value(self, f"%{MAP}", _MAP)],
        )  # fmt: skip

    # -- matrix products ---------------------------------------------------------------------------

    def load_matrices(self, address: Value, count: int, offset: int = 0) -> list[Value]:
        """Load 8x8 matrices of 16-bit elements (``ldmatrix``); lane 8 i + r has the address of row r of matrix i."""
        names = ",".join(f"${i}" for i in range(count))
        text = f"ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {{{names}}}, [${count}+{offset}];"
        return self.ptx(text, [I32] * count, [address])

    def multiply(self, shape: str, a: Sequence[Value], b: Sequence[Value], c: Sequence[Value]) -> list[Value]:
        """``a b + c`` of one warp (``mma.sync``), such as ``m16n8k16.row.col.f32.f16.f16.f32``."""
        counts = len(c), len(a), len(b), len(c)
        names, at = [], 0
        for count in counts:
            names.append("{" + ",".join(f"${at + i}" for i in range(count)) + "}")
            at += count
        kinds = [one.type for one in c]
        return self.ptx(f"mma.sync.aligned.{shape} {', '.join(names)};", kinds, [*a, *b, *c], pure=True)

    def group_fence(self) -> None:
        """Let the products of the warp group that follow see registers and shared memory as they are now."""
        self.ptx("wgmma.fence.sync.aligned;")

    def group_multiply(self, shape: str, a: Sequence[Value], b: Value, sums: Sequence[Value], *, add: bool,
                       modifiers: str) -> list[Value]:  # fmt: skip
        """Begin ``a b``, or ``sums + a b``, of a warp group (``wgmma``).

        ``a`` is a descriptor of shared memory or four registers, ``b`` a descriptor.
        """
        count = len(sums)
        names = ",".join(f"${i}" for i in range(count))
        left = f"${count}" if len(a) == 1 else "{" + ",".join(f"${count + i}" for i in range(len(a))) + "}"
        text = (
            f"{{ .reg .pred p; setp.eq.u32 p, {int(add)}, 1; wgmma.mma_async.sync.aligned.{shape} {{{names}}}, "
            f"{left}, ${count + len(a)}, p{modifiers}; }}"
        )
        return self.ptx(text, [F32] * count, [*a, b], tied=sums)

    def group_commit(self) -> None:
        """Make one group of the products begun since the last."""
        self.ptx("wgmma.commit_group.sync.aligned;")

    def group_wait(self, groups: int) -> None:
        """Wait until no more groups of products than these are under way."""
        self.ptx(f"wgmma.wait_group.sync.aligned {groups};")

    def settled(self, values: Sequence[Value]) -> list[Value]:
        """The same values, none of which is read before this point."""
        return self.ptx("", [one.type for one in values], (), tied=values)

    def descriptor(self, address: Value, rows: int, stride: int) -> Value:
        """Descriptor of a tile in shared memory of rows of 128 or 64 bytes; ``stride`` is that of 8 rows, in bytes."""
        swizzle = {128: 1, 64: 2}[rows]
        fixed = (swizzle << 62) | ((stride >> 4) << 32) | (1 << 16)
        signed = fixed - (1 << 64) if fixed >= 1 << 63 else fixed
        return self.cast("zext", (address & 0x3FFFF) >> 4, I64) | signed

    # -- text --------------------------------------------------------------------------------------

    def text(self) -> str:
        """The kernel as LLVM's text form."""
        pointers = [f"{_GLOBAL} noalias %{name}" for name in self.arguments]
        if self.has_map:
            pointers.append(f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %{MAP}')
        arguments = ", ".join([*pointers, *(f"i64 %{name}" for name in self.numbers)])
        cluster = f' "nvvm.cluster_dim"="{self.cluster},1,1"' if self.cluster > 1 else ""
        return "\n".join([
            f'target triple = "{TRIPLE}"',
            "@shared = external addrspace(3) global [0 x i8], align 1024",
            f"define ptx_kernel void @{self.name}({arguments}) #0 {{",
            "entry:", *self._variables, *self._lines, "  ret void", "}", *self._declared.values(),
            f'attributes #0 = {{ nounwind "nvvm.maxntid"="{self.threads}" "nvvm.minctasm"="{self.blocks}"{cluster} }}',
            "attributes #1 = { convergent nounwind }",
            "!0 = !{}",
        ])  # fmt: skip


TRIPLE = "nvptx64-nvidia-cuda"
_SPELLED = {"float": "f32", "double": "f64", "i32": "b32", "i64": "b64"}
