"""python -m misoctl"""

from misoctl.cli import main

main()
