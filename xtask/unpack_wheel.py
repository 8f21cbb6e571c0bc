"""Unpacks the wanted files of a wheel, which is a zip archive, into a folder.

    unpack_wheel.py WHEEL FOLDER PATTERN=SUBFOLDER ...

Each file of the wheel whose path matches PATTERN (`*` does not cross a slash)
is written to FOLDER/SUBFOLDER under its own name. A pattern that matches
nothing is an error, because then the wheel is not laid out as its user thinks.
"""

import pathlib
import shutil
import sys
import zipfile


def main() -> None:
    wheel, folder, *rules = sys.argv[1:]
    with zipfile.ZipFile(wheel) as archive:
        paths = [pathlib.PurePosixPath(name) for name in archive.namelist()]
        for rule in rules:
            pattern, subfolder = rule.split("=")
            matching = [path for path in paths if path.match(pattern)]
            if not matching:
                sys.exit(f"{wheel} contains no {pattern}")
            target = pathlib.Path(folder, subfolder)
            target.mkdir(parents=True, exist_ok=True)
            for path in matching:
                with archive.open(str(path)) as source, open(target / path.name, "wb") as copy:
                    shutil.copyfileobj(source, copy)


main()
