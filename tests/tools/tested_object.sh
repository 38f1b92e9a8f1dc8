#!/bin/sh
# A compiler launcher for a second build of this tree: copies the object of $TRIREME_TESTED, a build folder, that has
# the same name, unless its source is newer or the file $TRIREME_CHANGED names it; otherwise it runs the compiler.
# usage: tested_object.sh COMPILER ARGUMENT... -o OBJECT ... SOURCE
object='' last=''
for word; do
    [ "$last" != -o ] || object=$word
    last=$word
done
tested=$TRIREME_TESTED/$object
if [ "$tested" -nt "$last" ] && ! grep -qxF "$object" "${TRIREME_CHANGED:-/dev/null}"; then
    exec cp "$tested" "$object"
fi
exec "$@"
