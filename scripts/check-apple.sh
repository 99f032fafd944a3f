#!/usr/bin/env bash
# Type-checks the command, with its Metal host, for aarch64-apple-darwin on Linux.
#
# The stable toolchain has no standard library of macOS here. Debian's `rustc-web` is a compiler
# with the matching sources (`rust-web-src`), from which cargo makes that library first: about two
# minutes with two cores, seconds once it is there. Both packages are installed where this may be
# done (root, apt); elsewhere the check says why it is skipped. TILEWRIGHT_REQUIRE_APPLE=1 makes
# that a failure. `scripts/check-apple.sh clippy` lints instead (package rust-web-clippy).
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-apple-darwin
compiler=/usr/bin/rustc
mode=${1:-check}
packages=(rustc-web rust-web-src)
[ "$mode" = clippy ] && packages+=(rust-web-clippy)

skip() {
    if [ "${TILEWRIGHT_REQUIRE_APPLE:-}" = 1 ]; then
        echo "the check for $target can't run: $*" >&2
        exit 1
    fi
    echo "the check for $target is skipped: $*"
    exit 0
}

# Cargo looks for the sources in the compiler's own folder.
ready() {
    [ -x "$compiler" ] &&
        [ -e "$("$compiler" --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ] &&
        { [ "$mode" != clippy ] || [ -x /usr/bin/clippy-driver ]; }
}

if ! ready; then
    [ "$(uname -s)" = Linux ] || skip "on a Mac, \`cargo check\` does it"
    [ "$(id -u)" = 0 ] || skip "${packages[*]} are missing, and installing them needs root"
    command -v apt-get >/dev/null || skip "there is no apt-get to install ${packages[*]}"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } \
        >/dev/null || skip "${packages[*]} can't be installed"
    ready || skip "$compiler has no sources of its library"
fi

echo "$mode for $target with $("$compiler" --version)"
# The sources are built with the compiler that they belong to; its release lets them use what is
# unstable. Nothing that is built here runs, so nothing is optimised.
export RUSTC_BOOTSTRAP=1 RUSTC="$compiler"
export CARGO_TARGET_DIR="${TILEWRIGHT_APPLE_TARGET_DIR:-target/apple}"
unset RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER
common=(-Zbuild-std=std,panic_abort --target "$target" --locked
    --config 'profile.dev.opt-level=0' --config 'profile.dev.package."*".opt-level=0'
    -p tilewright -p tilewright-cli -p tilewright-controls -p tilewright-metal)
if [ "$mode" = clippy ]; then
    export RUSTC_WORKSPACE_WRAPPER=/usr/bin/clippy-driver
    export CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"
fi
cargo check "${common[@]}"
