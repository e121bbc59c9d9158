#!/usr/bin/env bash
# The options of rustc that link with the C library of a folder of `prepare.sh dev`: linking.sh FOLDER
set -euo pipefail
folder=${1:?FOLDER}
# Without the others, gcc would look beside itself first, where this machine's library is.
for option in "--sysroot=$folder" "-B$folder/usr/lib/x86_64-linux-gnu/" "-L$folder/usr/lib/x86_64-linux-gnu" "-L$folder/lib/x86_64-linux-gnu"; do
    printf -- '-C link-arg=%s ' "$option"
done
