"""The foundation: errors, options, random keys, progress bars, files. Imports nothing else of fedprompt.

- ``errors``: :class:`UserError`, the one-line error for whatever a user can put right
- ``fields``: options with meaning, range and the paper's value, as fields of frozen dataclasses
- ``rng``: random generators from keys; nothing draws from a global stream
- ``files``, ``untrusted``: writing files whole or not at all, and reading files that come from outside
- ``progress``, ``text``, ``memory``: bars, numbers and foreign text for people, memory settings
"""
