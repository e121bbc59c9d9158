#!/usr/bin/env bash
# Everything about libqp that a C program relies on: the header is current and works from C99, C11 and C++17; only qp_* is
# visible; the interface, the link line and the sizes are as recorded; installing works; the examples are built by several
# compilers, against libqp.a and libqp.so, and run; wrong uses are refused, plain, under AddressSanitizer and under valgrind.
#
#   ci/capi.sh              all of it
#   ci/capi.sh STEP ...     only these (build runs first in any case); `ci/capi.sh --list` prints the names
#
# What a step needs and the machine lacks is a SKIP with its reason. As root on Debian it installs what is missing (not with
# QP_CHECK_INSTALL=0).
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
work=$CARGO_TARGET_DIR/ci/capi
stage=$work/stage
capi=$root/rdma-capi
PATH=$PATH:$CARGO_TARGET_DIR/tools/bin
failed=()
# What runs without libibverbs, and what begins as a plain verbs program.
own=(pair server key_value announcer supervised datagrams stage_c)
verbs=(plain stage_a stage_b)
strict=(-Wall -Wextra -Werror -O1 -g)

skip() { printf 'SKIP %s: %s\n' "$1" "$2"; }
have() { command -v "$1" >/dev/null; }

install_tools() {
    [[ ${QP_CHECK_INSTALL:-1} != 0 ]] || return 0
    ci/packages.sh gcc g++ clang cmake pkg-config valgrind libibverbs-dev binutils python3 openmpi-bin libopenmpi-dev mpich libmpich-dev
    have cbindgen || timeout 400 cargo install --quiet --locked cbindgen@0.29.4 --root "$CARGO_TARGET_DIR/tools" >"$work/install.log" 2>&1 </dev/null
}

# --- steps -----------------------------------------------------------------------------------------

step_build() {
    rm -rf "$stage"
    "$capi/install.sh" --prefix "$stage" >"$work/build.log" 2>&1 || { tail -n 40 "$work/build.log"; return 1; }
    tail -n 1 "$work/build.log"
}

step_header() {
    "$capi/header.sh" --check
    local status=$?
    ((status == 77)) && return 0
    ((status == 0)) || return 1
    # Every function, struct and type is documented.
    python3 - "$capi/include/qp.h" <<'END'
import re, sys
lines = open(sys.argv[1]).read().splitlines()
bare = [line for before, line in zip(lines, lines[1:])
        if re.match(r"(int|const char|enum qp_code) .*\bqp_\w+\(|typedef ", line) and before != " */"]
print("without documentation:", *bare, sep="\n  ") if bare else print("current, and all of it documented")
sys.exit(bool(bare))
END
}

step_abi() { "$capi/abi.py" && "$capi/stages.sh" --check; }

step_symbols() {
    local declared exported
    declared=$(grep -oE '^(int|const char \*|enum qp_code )\s*\*?qp_[a-z0-9_]+\(' "$capi/include/qp.h" | grep -oE 'qp_[a-z0-9_]+\(' | tr -d '(' | sort)
    for file in "$stage/lib/libqp.a" "$stage/lib/libqp.so"; do
        case $file in
            *.a) exported=$(nm --defined-only --extern-only --format=just-symbols "$file" | grep -vE '^$|:$' | sort) ;;
            *) exported=$(nm --dynamic --defined-only --format=just-symbols "$file" | sort) ;;
        esac
        diff <(echo "$declared") <(echo "$exported") || { echo "$file does not export exactly what qp.h declares"; return 1; }
    done
    echo "$(wc -l <<<"$declared") functions, and nothing else, in libqp.a and libqp.so"
}

step_linkline() {
    local said needed
    # What rustc says a static library of ours needs, without what every C compiler adds.
    said=$(tr ' ' '\n' <"$CARGO_TARGET_DIR/libqp/needs" | grep -vE '^(-lgcc_s|-lc|-lutil|-lrt|)$' | sort -u | tr '\n' ' ')
    [[ $said == "-ldl -lm -lpthread " ]] || { echo "libqp.a needs $said, and install.sh says otherwise"; return 1; }
    needed=$(readelf -d "$stage/lib/libqp.so" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' | grep -vE '^(libc|libm|libgcc_s|libdl|libpthread|ld-linux[a-z0-9-]*)\.so' | tr '\n' ' ')
    [[ -z $needed ]] || { echo "libqp.so needs $needed"; return 1; }
    [[ $(readelf -d "$stage/lib/libqp.so" | sed -nE 's/.*SONAME.*\[(.*)\]/\1/p') == libqp.so.0 ]] || { echo "wrong SONAME"; return 1; }
    echo "static: $(pkg-config_ --variable=static_libs); shared: the C library only"
}

# A size may grow by a quarter before somebody has to look: `ci/capi.sh --record` notes new ones.
sizes() {
    local text
    text=$(size -A "$work/../../libqp/qp.o" 2>/dev/null | awk '/^\.text/{n += $2} END{print n}')
    echo "libqp.a $(stat -c %s "$stage/lib/libqp.a")"
    echo "libqp.so $(stat -Lc %s "$stage/lib/libqp.so")"
    echo "code $text"
}
step_sizes() {
    sizes >"$work/sizes"
    awk 'NR == FNR {recorded[$1] = $2; next} {printf "%s %.2f MB; ", $1, $2 / 1e6; if ($2 > 1.25 * recorded[$1]) {printf "recorded was %.2f MB! ", recorded[$1] / 1e6; bad = 1}} END {print ""; exit bad}' \
        "$capi/sizes.txt" "$work/sizes"
}

pkg-config_() { PKG_CONFIG_PATH=$stage/lib/pkgconfig pkg-config "$@" qp; }

# Builds everything with everything; keeps the programs of gcc with libqp.a and of clang with libqp.so.
step_compile() {
    have pkg-config || { skip capi-compile "pkg-config is not installed"; return 0; }
    local cflags static shared compiler standard name built=0 dir extra
    cflags=$(pkg-config_ --cflags) static=$(pkg-config_ --variable=static_libs) shared=$(pkg-config_ --libs)
    mkdir -p "$work/static" "$work/shared"
    local names=("${own[@]}")
    if [[ -e /usr/include/infiniband/verbs.h ]]; then names+=("${verbs[@]}"); else skip capi-verbs "no /usr/include/infiniband/verbs.h (package libibverbs-dev)"; fi
    for compiler in gcc clang g++ clang++; do
        have "$compiler" || { skip "capi-$compiler" "$compiler is not installed"; continue; }
        case $compiler in
            *++) standards=(c++17); language=(-x c++) ;;
            *) standards=(c99 c11); language=() ;;
        esac
        for standard in "${standards[@]}"; do
            for name in "${names[@]}"; do
                extra=()
                [[ " ${verbs[*]} " == *" $name "* ]] && extra=(-libverbs)
                dir=$work/static
                # shellcheck disable=SC2086 # flags are words
                "$compiler" -std=$standard "${strict[@]}" $cflags "${language[@]}" "$capi/examples/$name.c" -x none -o "$dir/$name" $static "${extra[@]}" ||
                    { echo "$compiler -std=$standard $name.c libqp.a"; return 1; }
                dir=$work/shared
                # shellcheck disable=SC2086
                "$compiler" -std=$standard "${strict[@]}" $cflags "${language[@]}" "$capi/examples/$name.c" -x none -o "$dir/$name" $shared -Wl,-rpath,"$stage/lib" "${extra[@]}" ||
                    { echo "$compiler -std=$standard $name.c libqp.so"; return 1; }
                built=$((built + 2))
            done
            for extra in -DNOTHING -DVERBS_BEFORE -DVERBS_AFTER; do
                [[ $extra == -DNOTHING || -e /usr/include/infiniband/verbs.h ]] || continue
                # shellcheck disable=SC2086
                "$compiler" -std=$standard "${strict[@]}" $cflags $extra "${language[@]}" "$capi/tests/version.c" -x none -o "$work/version" $static && "$work/version" >/dev/null ||
                    { echo "$compiler -std=$standard $extra version.c"; return 1; }
                built=$((built + 1))
            done
        done
    done
    # The line that both pages show.
    local page line
    for page in README.md rdma-capi/README.md; do
        line=$(grep -E '^gcc .*pair\.c' "$page") || { echo "$page does not show how to compile pair.c"; return 1; }
        rm -rf "$work/home" && mkdir -p "$work/home/here" && ln -s "$stage" "$work/home/qp" && ln -s "$capi" "$work/home/here/rdma-capi" || return 1
        (cd "$work/home/here" && HOME=$work/home && eval "$line") || { echo "$page: $line"; return 1; }
    done
    # What is run below.
    for name in "${names[@]}"; do
        extra=()
        [[ " ${verbs[*]} " == *" $name "* ]] && extra=(-libverbs)
        # shellcheck disable=SC2086
        gcc -std=c99 "${strict[@]}" $cflags "$capi/examples/$name.c" -o "$work/static/$name" $static "${extra[@]}" || return 1
        # shellcheck disable=SC2086
        "$(have clang && echo clang || echo gcc)" -std=c11 "${strict[@]}" $cflags "$capi/examples/$name.c" -o "$work/shared/$name" $shared -Wl,-rpath,"$stage/lib" "${extra[@]}" || return 1
    done
    echo "$built programs"
}

# Begins a program in the background, and waits until it says on which address it waits.
begin() {
    local out=$1 line
    shift
    # What an earlier run said is not to be waited for.
    rm -f "$out" "$out.err"
    timeout 60 "$@" >"$out" 2>"$out.err" </dev/null &
    for _ in $(seq 200); do
        line=$(sed -nE 's/^waiting: (pair )?//p; s/^listening$/listening/p' "$out.err" 2>/dev/null)
        [[ -n $line ]] && { echo "$line"; return 0; }
        sleep 0.05
    done
    cat "$out" "$out.err" >&2
    return 1
}

# Waits until a program has said so: one that was begun in the background may still be at it.
expect() {
    for _ in $(seq 200); do
        grep -qE "$2" "$1" && return 0
        sleep 0.05
    done
    echo "$1 has not: $2"
    cat "$1" "$1.err" 2>/dev/null
    return 1
}

# A connection whose server is killed twice, with messages under way, and started again at its address; the last one is told
# that it is over.
supervised() {
    local server client address=127.0.0.1:0 round
    rm -f "$work"/watch{ed,ing}.out{,.err}
    for round in 1 2 3; do
        "$1" listen "$address" >"$work/watched.out" 2>"$work/watched.out.err" &
        server=$!
        if ((round == 1)); then
            expect "$work/watched.out.err" '^waiting: ' || return 1
            address=$(sed -n 's/^waiting: //p' "$work/watched.out.err")
            timeout 120 "$1" "$address" 3 >"$work/watching.out" 2>"$work/watching.out.err" &
            client=$!
        fi
        expect "$work/watching.out" "^life $round begins$" || { kill -KILL $server; return 1; }
        ((round == 3)) && break
        sleep 0.5
        # (The shell would tell of it.)
        kill -KILL $server && ! wait $server 2>/dev/null || return 1
        expect "$work/watching.out" "^life $round: [1-9][0-9]* done" || return 1
    done
    wait $client || { cat "$work/watching.out" "$work/watching.out.err"; kill -KILL $server; return 1; }
    expect "$work/watching.out" '^[0-9]+ messages in 3 lives$' || return 1
    wait $server || { cat "$work/watched.out" "$work/watched.out.err"; return 1; }
    expect "$work/watched.out" '^[0-9]+ messages$'
}

step_run() {
    local kind bin address
    for kind in static shared; do
        bin=$work/$kind
        [[ -x $bin/pair ]] || { skip capi-run "the programs were not built"; return 0; }
        address=$(begin "$work/pair.out" "$bin/pair") || return 1
        timeout 60 "$bin/pair" "$address" >"$work/pair2.out" 2>&1 || { cat "$work/pair2.out"; return 1; }
        expect "$work/pair2.out" 'the peer says: hello from the server' || return 1
        wait
        expect "$work/pair.out" 'the peer says: hello from the client' || return 1

        address=$(begin "$work/server.out" "$bin/server" 3) || return 1
        for client in 1 2 3; do timeout 60 "$bin/server" "$address" 100 >"$work/client$client.out" 2>&1 & done
        wait
        expect "$work/server.out" '^300 requests of 3 clients$' || return 1
        for client in 1 2 3; do expect "$work/client$client.out" '^100 answers$' || return 1; done

        address=$(begin "$work/kv.out" "$bin/key_value") || return 1
        timeout 60 "$bin/key_value" "$address" 300 >"$work/kv2.out" 2>&1 || { cat "$work/kv2.out"; return 1; }
        expect "$work/kv2.out" '^[0-9]+ reads per second' || return 1
        wait

        begin "$work/listen.out" "$bin/announcer" listen 239.7.7.7 3 >/dev/null || return 1
        timeout 60 "$bin/announcer" announce 239.7.7.7 6 >"$work/announce.out" 2>&1 || { cat "$work/announce.out"; return 1; }
        wait
        expect "$work/listen.out" 'still here \(from QP 0x' || return 1
        supervised "$bin/supervised" || return 1

        address=$(begin "$work/datagrams.out" "$bin/datagrams" 3 200) || return 1
        for client in 1 2; do timeout 60 "$bin/datagrams" "$address" >"$work/datagrams$client.out" 2>&1 & done
        wait
        for client in "" 1 2; do expect "$work/datagrams$client.out" '^process [012]: 400 messages to 2 others, 400 from them; ' || return 1; done
    done
    echo "pair, server, key_value, announcer, supervised and datagrams, with libqp.a and with libqp.so"
}

# The plain verbs program and its three stages, over the software device in front of libibverbs.
step_stages() {
    local preload=$CARGO_TARGET_DIR/release/librdma_soft_preload.so name kind port
    [[ -x $work/static/plain ]] || { skip capi-stages "the plain verbs program was not built"; return 0; }
    cargo build --quiet --release --locked -p rdma-soft-preload || return 1
    for kind in static shared; do
        for name in plain stage_a stage_b stage_c; do
            port=$((20000 + RANDOM % 10000))
            LD_PRELOAD=$preload timeout 60 "$work/$kind/$name" $port >"$work/$name.out" 2>&1 &
            LD_PRELOAD=$preload timeout 60 "$work/$kind/$name" $port 127.0.0.1 >"$work/$name.2.out" 2>&1 || { cat "$work/$name.2.out"; return 1; }
            wait
            expect "$work/$name.out" 'the peer says: hello from the client' || return 1
            expect "$work/$name.2.out" 'the peer says: hello from the server' || return 1
        done
    done
    echo "plain.c and its three stages; lines that differ: $(for name in stage_a stage_b stage_c; do
        printf '%s %s; ' $name "$(diff "$capi/examples/plain.c" "$capi/examples/$name.c" | grep -c '^[<>]')"; done)"
}

# What works: all kinds of requests between two processes, plain and under the two tools.
step_good() {
    local cflags="-I$stage/include" static="$stage/lib/libqp.a -pthread -ldl -lm" preload=$CARGO_TARGET_DIR/release/librdma_soft_preload.so
    # shellcheck disable=SC2086
    gcc -std=c99 "${strict[@]}" $cflags "$capi/tests/good.c" -o "$work/good" $static || return 1
    timeout 120 "$work/good" || return 1
    # shellcheck disable=SC2086
    if gcc -std=c11 "${strict[@]}" -fsanitize=address -fno-omit-frame-pointer $cflags "$capi/tests/good.c" -o "$work/good_asan" $static 2>"$work/asan.err"; then
        timeout 240 "$work/good_asan" >"$work/good_asan.out" 2>&1 || { tail -n 60 "$work/good_asan.out"; return 1; }
    fi
    if have valgrind; then
        timeout 300 valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,indirect --fair-sched=yes "$work/good" >"$work/good_valgrind.out" 2>&1 ||
            { tail -n 60 "$work/good_valgrind.out"; return 1; }
    fi
    [[ -e /usr/include/infiniband/verbs.h ]] || return 0
    cargo build --quiet --release --locked -p rdma-soft-preload || return 1
    # shellcheck disable=SC2086
    gcc -std=c99 "${strict[@]}" $cflags "$capi/tests/raw.c" -o "$work/raw" $static -libverbs || return 1
    LD_PRELOAD=$preload timeout 120 "$work/raw"
}

step_misuse() {
    local cflags="-I$stage/include" static="$stage/lib/libqp.a -pthread -ldl -lm" compiler=gcc
    # shellcheck disable=SC2086
    gcc -std=c99 "${strict[@]}" $cflags "$capi/tests/misuse.c" -o "$work/misuse" $static && timeout 120 "$work/misuse" || return 1
    have clang && compiler=clang
    # shellcheck disable=SC2086
    if $compiler -std=c11 "${strict[@]}" -fsanitize=address -fno-omit-frame-pointer $cflags "$capi/tests/misuse.c" -o "$work/misuse_asan" $static 2>"$work/asan.err" ||
        { compiler=gcc; gcc -std=c11 "${strict[@]}" -fsanitize=address -fno-omit-frame-pointer $cflags "$capi/tests/misuse.c" -o "$work/misuse_asan" $static 2>>"$work/asan.err"; }; then
        ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1 timeout 240 "$work/misuse_asan" >"$work/misuse_asan.out" 2>&1 || { tail -n 60 "$work/misuse_asan.out"; return 1; }
        echo "under AddressSanitizer ($compiler): $(grep 'wrong uses' "$work/misuse_asan.out")"
    else
        skip capi-asan "no compiler has AddressSanitizer here: $(head -n 1 "$work/asan.err")"
    fi
    if have valgrind; then
        timeout 300 valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,indirect --fair-sched=yes "$work/misuse" >"$work/misuse_valgrind.out" 2>&1 || { tail -n 60 "$work/misuse_valgrind.out"; return 1; }
        echo "under valgrind: $(grep 'wrong uses' "$work/misuse_valgrind.out"), nothing leaked"
    else
        skip capi-valgrind "valgrind is not installed"
    fi
}

# Random calls with random arguments; the seeds are fixed.
step_fuzz() {
    local seed
    # shellcheck disable=SC2086
    gcc -std=c99 "${strict[@]}" -I"$stage/include" "$capi/tests/fuzz.c" -o "$work/fuzz" "$stage/lib/libqp.a" -pthread -ldl -lm || return 1
    for seed in 1 2 3; do timeout 120 "$work/fuzz" 20000 $seed || return 1; done
    have valgrind || { skip capi-fuzz-valgrind "valgrind is not installed"; return 0; }
    timeout 300 valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,indirect --fair-sched=yes "$work/fuzz" 3000 4 >"$work/fuzz_valgrind.out" 2>&1 ||
        { tail -n 60 "$work/fuzz_valgrind.out"; return 1; }
    echo "under valgrind: $(grep ' calls, ' "$work/fuzz_valgrind.out")"
}

step_install() {
    local dest=$work/dest lib
    rm -rf "$dest"
    # Where it is put and where it will be used from are two things.
    DESTDIR=$dest "$capi/install.sh" --prefix /opt/qp --libdir lib64 --no-build >/dev/null || return 1
    DESTDIR=$dest "$capi/install.sh" --prefix /opt/qp --libdir lib64 --no-build >/dev/null || { echo "a second time"; return 1; }
    lib=$dest/opt/qp/lib64
    diff <(cd "$dest" && find . -not -type d | sort) - <<END || return 1
./opt/qp/include/qp.h
./opt/qp/lib64/cmake/qp/qpConfig.cmake
./opt/qp/lib64/cmake/qp/qpConfigVersion.cmake
./opt/qp/lib64/libqp.a
./opt/qp/lib64/libqp.so
./opt/qp/lib64/libqp.so.0
./opt/qp/lib64/libqp.so.$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"$/\1/p' Cargo.toml)
./opt/qp/lib64/pkgconfig/qp.pc
END
    [[ -e $lib/libqp.so ]] || { echo "libqp.so points nowhere"; return 1; }
    ! grep -rlF "$dest" "$lib/pkgconfig" "$lib/cmake" || { echo "DESTDIR is in a file"; return 1; }
    grep -qx 'prefix=/opt/qp' "$lib/pkgconfig/qp.pc" || return 1
    for bad in "--prefix relative" "--libdir /lib" "--unknown"; do
        # shellcheck disable=SC2086
        ! "$capi/install.sh" $bad --no-build >/dev/null 2>&1 || { echo "install.sh takes $bad"; return 1; }
    done
    echo "prefix, libdir and DESTDIR"
}

step_cmake() {
    have cmake || { skip capi-cmake "cmake is not installed"; return 0; }
    # CMake looks into lib64 on some systems only, so it is told; the files are not where they will be used from.
    for where in "CMAKE_PREFIX_PATH=$stage" "qp_DIR=$work/dest/opt/qp/lib64/cmake/qp"; do
        rm -rf "$work/cmake"
        cmake -S "$capi/tests/cmake" -B "$work/cmake" -D"$where" >"$work/cmake-build.log" 2>&1 || { cat "$work/cmake-build.log"; return 1; }
        cmake --build "$work/cmake" >>"$work/cmake-build.log" 2>&1 || { tail -n 30 "$work/cmake-build.log"; return 1; }
        "$work/cmake/version_shared" && "$work/cmake/version_static" || return 1
    done
}

# Beside another library in Rust, and in a program without any shared library.
step_beside() {
    rustc --edition 2024 --crate-type staticlib -O -o "$work/libother.a" "$capi/tests/other.rs" || return 1
    local order
    for order in "$stage/lib/libqp.a $work/libother.a" "$work/libother.a $stage/lib/libqp.a"; do
        # shellcheck disable=SC2086
        gcc -std=c99 "${strict[@]}" -I"$stage/include" "$capi/tests/beside.c" -o "$work/beside" $order -pthread -ldl -lm && timeout 30 "$work/beside" || { echo "linked as $order"; return 1; }
    done
    # (glibc warns of getaddrinfo and dlopen in such a program.)
    gcc -static -std=c99 -I"$stage/include" "$capi/tests/misuse.c" -o "$work/misuse_static" "$stage/lib/libqp.a" -pthread -ldl -lm 2>"$work/static.err" || { cat "$work/static.err"; return 1; }
    timeout 60 "$work/misuse_static" || return 1
    # A libibverbs that is linked statically is the one that is used, without a dynamic linker that could find it.
    local library
    library=$(ldconfig -p 2>/dev/null | sed -nE 's/.*libibverbs\.so\.1 .*=> //p' | head -n 1)
    [[ -e $library ]] || { skip capi-static-verbs "no libibverbs.so.1, whose symbols a stand-in needs"; return 0; }
    {
        readelf --dyn-syms --wide "$library" | sed -nE 's/.* GLOBAL +DEFAULT +[0-9]+ ([a-z_]*ibv_[a-z0-9_]+)@@?IBVERBS_1.*/\1/p' | sort -u |
            grep -vx ibv_get_device_list | sed 's/.*/long &(void) { return 0; }/'
        echo 'int asked; void **ibv_get_device_list(int *n) { static void *none[1]; asked++; if (n) *n = 0; return none; }'
        echo '#include <qp.h>'
        echo '#include <stdio.h>'
        echo 'int main(void) { qp_device *d; return !(qp_device_open(NULL, &d) && qp_last_code() == QP_CODE_NOT_FOUND && asked); }'
    } >"$work/stand_in.c"
    gcc -static -w -I"$stage/include" "$work/stand_in.c" -o "$work/stand_in" "$stage/lib/libqp.a" -pthread -ldl -lm 2>/dev/null &&
        timeout 30 "$work/stand_in" || { echo "a libibverbs that is linked statically is not found"; return 1; }
    echo "beside Rust, in a static program, and with a libibverbs that is linked into it"
}

step_mpi() { "$capi/tests/mpi.sh" "$stage"; }

# From a release tarball, without network and without what Cargo has on this machine. Checked only: what builds is the same.
step_tarball() {
    local apart=$work/tarball tarball isolated=()
    git -C "$root" rev-parse --quiet --verify HEAD >/dev/null 2>&1 || { skip capi-tarball "no git, or this is no clone: a tarball is made from a commit"; return 0; }
    rm -rf "$apart" && mkdir -p "$apart/home" || return 1
    tarball=$("$capi/tarball.sh" "$apart") || return 1
    tar -xf "$tarball" -C "$apart" || return 1
    unshare --net true 2>/dev/null && isolated=(unshare --net)
    (cd "$apart"/rdma-qp-*/ && CARGO_HOME=$apart/home CARGO_TARGET_DIR=$work/tarball-target \
        "${isolated[@]}" cargo check --quiet --locked --offline -p rdma-capi) || return 1
    echo "$(basename "$tarball") of $(($(stat -c %s "$tarball") / 1000000)) MB ${isolated:+without a network}"
}

# --- all of it -------------------------------------------------------------------------------------

all=(header abi symbols linkline sizes compile run stages good misuse fuzz install cmake beside mpi tarball)
if [[ ${1:-} == --list ]]; then printf '%s\n' "${all[@]}"; exit 0; fi
mkdir -p "$work" || exit 1
if [[ ${1:-} == --record ]]; then
    step_build && "$capi/abi.py" --record && sizes >"$capi/sizes.txt"
    exit
fi
chosen=("$@")
((${#chosen[@]})) || chosen=("${all[@]}")
for name in "${chosen[@]}"; do
    declare -F "step_$name" >/dev/null || { echo "no step is called $name; see ci/capi.sh --list" >&2; exit 2; }
done
install_tools
step_build || { echo "FAIL build"; exit 1; }
for name in "${chosen[@]}"; do
    began=$SECONDS
    if "step_$name" >"$work/$name.log" 2>&1; then
        grep -E '^SKIP ' "$work/$name.log"
        printf 'ok    %-10s %3d s  %s\n' "$name" $((SECONDS - began)) "$(grep -v '^SKIP ' "$work/$name.log" | tail -n 3 | tr '\n' ' ')"
    else
        printf 'FAIL  %-10s %3d s\n' "$name" $((SECONDS - began))
        tail -n 60 "$work/$name.log" | sed 's/^/    /'
        failed+=("$name")
    fi
done
((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}"; exit 1; }
