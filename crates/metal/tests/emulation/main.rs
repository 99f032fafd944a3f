//! Kernels' MSL executed on this machine: compiled as C++ with the headers and the scheduler of
//! `emulator/`, every lane a fiber, and checked against the float64 interpreter.
//!
//! A C++ compiler (`TILEWRIGHT_CXX`, else `g++`, else `clang++`) and clang
//! (`TILEWRIGHT_CLANG`, else `clang++-19` and its neighbours) are needed. Where one isn't found the
//! tests say that they are skipped, unless `TILEWRIGHT_REQUIRE_EMULATION` asks for a failure.

mod address;
mod build;
mod judge;
mod launch;
mod mutate;
mod mutation;
mod selftest;
mod source;
mod suite;
mod survivors;
