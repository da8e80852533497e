"""A hop that understands Kafka's frames and stands between clients and Toxiproxy when a plan asks for it.

::

    client ──▶ wire proxy ──▶ Toxiproxy ──▶ broker
                   │ rules: which requests, and what becomes of them or of their answers

=====================  ===========================================================================
what a rule says       ``rule.py``; which requests it meets, and its counters: ``book.py``
bytes                  ``cutter.py`` cuts them into frames, ``heads.py`` reads how these begin
a connection           ``conversation.py`` (what becomes of a request), ``lane.py`` (what leaves when)
whole messages         ``messages.py`` reads and writes them; what one names: ``naming.py``
answers                changed: ``alter.py``; made up: ``refusal.py``, ``making.py``
a probe                a harmless request that only its own rule meets: ``probe.py``
a process of its own   ``proxy.py`` listens, ``control.py`` is told rules, ``__main__.py`` puts them together
=====================  ===========================================================================

Rules. What no rule meets passes byte by byte, and only the beginning of its frame is looked at. What is changed is
decoded, changed and encoded again, but only where decoding and encoding alone would give the same bytes: else it passes
as it is and is counted as ``untouched``. A length is believed as far as bytes come; a peer that breaks the protocol
loses its connection. TLS and SASL tokens outside of Kafka's frames can't be read, so their connections are closed.
"""
