#!/bin/bash -eu
# Builds every fuzz target with its seeds and dictionary into $OUT, with the
# engine and flags that OSS-Fuzz sets (LIB_FUZZING_ENGINE, CXX, CXXFLAGS).
cd "$SRC/roce"
go run ./fuzz/libfuzzer -out "$OUT" -zip -dict fuzz/oss-fuzz/roce.dict
