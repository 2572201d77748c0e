"""Reads run records and decides what they show. Imports nothing that trains."""

import logging

# Before it is imported: where it cannot keep its cache it makes a temporary one and says so, which no reader need know.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
