#!/bin/sh
# Sets up the benchmarks: installs OpenBLAS (Debian, Ubuntu) and unsets the variables that make it
# something else than what it is on this machine. Source it, so that they are unset in your shell
# (`. scripts/bench-setup.sh`); the benchmarks unset them for their own workers in any case.

unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE

if ldconfig -p 2>/dev/null | grep -q 'libopenblas\.so'; then
    echo "OpenBLAS is installed."
elif command -v apt-get >/dev/null 2>&1; then
    if [ "$(id -u)" -eq 0 ]; then
        apt-get install -y libopenblas0-pthread
    else
        sudo apt-get install -y libopenblas0-pthread
    fi
else
    echo "No apt-get here: install OpenBLAS yourself; without it the benchmarks leave it out." >&2
fi
