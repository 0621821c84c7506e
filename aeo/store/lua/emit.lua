-- ARGV: evaluation, kind, then names and values.
emit(unpack(ARGV))
return 1
