#!/usr/bin/env bash
# Builds libqp and installs it: library, header, pkg-config file, CMake package.
#
#   rdma-capi/install.sh [--prefix DIR] [--libdir DIR] [--profile NAME] [--no-build] [CARGO OPTIONS, such as --offline]
#
# --prefix     where it will be used from; /usr/local if not given
# --libdir     below the prefix; lib if not given
# --profile    of Cargo; dist if not given, which optimises over all crates; release is built in less time
# --no-build   installs what an earlier run has built
# DESTDIR      (environment) put in front of every path, for packages; it is in none of the files
#
# Needs Rust and binutils. What is installed:
#
#   include/qp.h
#   lib/libqp.a            one object, whose only symbols are qp_*
#   lib/libqp.so -> libqp.so.0 -> libqp.so.VERSION
#   lib/pkgconfig/qp.pc    pkg-config --cflags --libs qp; pkg-config --variable=static_libs qp
#   lib/cmake/qp/          find_package(qp); targets qp::qp and qp::static
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
prefix=/usr/local libdir=lib profile=dist build=yes options=()
while (($#)); do
    case $1 in
        --prefix) prefix=${2:?--prefix needs a directory}; shift ;;
        --prefix=*) prefix=${1#*=} ;;
        --libdir) libdir=${2:?--libdir needs a directory}; shift ;;
        --libdir=*) libdir=${1#*=} ;;
        --profile) profile=${2:?--profile needs a name}; shift ;;
        --profile=*) profile=${1#*=} ;;
        --no-build) build=no ;;
        -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; exit ;;
        --offline | --locked | --frozen | --config | --config=*) options+=("$1"); [[ $1 == --config ]] && { options+=("$2"); shift; } ;;
        *) echo "install.sh: unknown option $1; see --help" >&2; exit 2 ;;
    esac
    shift
done
[[ $prefix == /* ]] || { echo "install.sh: --prefix $prefix is not an absolute path" >&2; exit 2; }
[[ $libdir != /* ]] || { echo "install.sh: --libdir $libdir is not below the prefix" >&2; exit 2; }
for tool in cargo ld objcopy ar nm install; do
    command -v "$tool" >/dev/null || { echo "install.sh: $tool is missing" >&2; exit 1; }
done

version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"$/\1/p' "$root/Cargo.toml")
major=${version%%.*}
target=${CARGO_TARGET_DIR:-$root/target}
built=$target/$profile
work=$target/libqp
# What a program that links libqp.a needs beside it; a C compiler adds its own libgcc.
static_needs="-pthread -ldl -lm"

if [[ $build == yes ]]; then
    mkdir -p "$work"
    (cd "$root" && cargo rustc --profile "$profile" -p rdma-capi --lib --locked "${options[@]}" -- \
        --print native-static-libs="$work/needs" -C link-arg=-Wl,-soname,libqp.so."$major")
    # The archive has everything of Rust's that was linked, with its symbols. One object is made of what the functions of the
    # header reach, and only their names stay visible: so nothing meets symbols of the program, or of another library that
    # was written in Rust.
    rm -f "$work"/libqp.* "$work/qp.o"
    nm --defined-only --extern-only --format=just-symbols "$built/libqp.a" 2>/dev/null | grep -E '^qp_' | sort -u >"$work/exported"
    [[ -s $work/exported ]] || { echo "install.sh: $built/libqp.a exports nothing" >&2; exit 1; }
    mapfile -t roots < <(sed 's/^/--undefined=/' "$work/exported")
    # (Groups that linkers keep one of are dissolved, or the other library would look for its own in here.)
    ld -r --gc-sections --force-group-allocation "${roots[@]}" -o "$work/qp.o" --whole-archive "$built/libqp.a" --no-whole-archive
    # (Rust's own library carries its intermediate code, which some versions of ar stumble over.)
    objcopy --keep-global-symbols="$work/exported" --strip-debug \
        --remove-section=.llvmbc --remove-section=.llvmcmd "$work/qp.o"
    ar rcsD "$work/libqp.a" "$work/qp.o"
    cp "$built/libqp.so" "$work/libqp.so"
    strip --strip-unneeded "$work/libqp.so"
fi
[[ -e $work/libqp.a ]] || { echo "install.sh: nothing is built: leave --no-build away" >&2; exit 1; }

lib=${DESTDIR:-}$prefix/$libdir
install -d "$lib/pkgconfig" "$lib/cmake/qp" "${DESTDIR:-}$prefix/include"
install -m 644 "$here/include/qp.h" "${DESTDIR:-}$prefix/include/qp.h"
install -m 644 "$work/libqp.a" "$lib/libqp.a"
install -m 755 "$work/libqp.so" "$lib/libqp.so.$version"
ln -sf "libqp.so.$version" "$lib/libqp.so.$major"
ln -sf "libqp.so.$major" "$lib/libqp.so"

cat >"$lib/pkgconfig/qp.pc" <<END
prefix=$prefix
libdir=\${prefix}/$libdir
includedir=\${prefix}/include
static_libs=\${libdir}/libqp.a $static_needs

Name: qp
Description: safe RDMA Queue Pairs for C and MPI programs
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lqp
Libs.private: $static_needs
END

# From lib/cmake/qp up to the prefix, however deep the library directory is.
up=$(sed -E 's|[^/]+|..|g' <<<"$libdir")/../..
cat >"$lib/cmake/qp/qpConfig.cmake" <<END
# find_package(qp) gives the targets qp::qp, the shared library, and qp::static.
get_filename_component(_qp_prefix "\${CMAKE_CURRENT_LIST_DIR}/$up" ABSOLUTE)
find_package(Threads REQUIRED)
if(NOT TARGET qp::qp)
  add_library(qp::qp SHARED IMPORTED)
  set_target_properties(qp::qp PROPERTIES
    IMPORTED_LOCATION "\${_qp_prefix}/$libdir/libqp.so.$version"
    IMPORTED_SONAME "libqp.so.$major"
    INTERFACE_INCLUDE_DIRECTORIES "\${_qp_prefix}/include")
  add_library(qp::static STATIC IMPORTED)
  set_target_properties(qp::static PROPERTIES
    IMPORTED_LOCATION "\${_qp_prefix}/$libdir/libqp.a"
    INTERFACE_INCLUDE_DIRECTORIES "\${_qp_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;\${CMAKE_DL_LIBS};m")
endif()
unset(_qp_prefix)
END
cat >"$lib/cmake/qp/qpConfigVersion.cmake" <<END
# As long as the major version is 0, a minor version may change the interface.
set(PACKAGE_VERSION "$version")
string(REGEX MATCH "^[0-9]+\\\\.[0-9]+" _qp_own "\${PACKAGE_VERSION}")
string(REGEX MATCH "^[0-9]+\\\\.[0-9]+" _qp_asked "\${PACKAGE_FIND_VERSION}")
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION AND
   ("\${_qp_asked}" STREQUAL "" OR "\${_qp_asked}" STREQUAL "\${_qp_own}"))
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
END
echo "libqp $version is in ${DESTDIR:-}$prefix"
