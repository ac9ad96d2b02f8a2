-- text_filter: the parts of a filter on payloads.  Not a script of its own: others include it by `-- include text_filter`.

-- Returns the function that tells whether a payload contains one text of each part.
-- first: in ARGV; there and behind it each part has the number of its texts, and these.
local function filter_from(first)
  local parts, at = {}, first
  while at <= #ARGV do
    local texts = {}
    for text = at + 1, at + ARGV[at] do texts[#texts + 1] = ARGV[text] end
    parts[#parts + 1], at = texts, at + ARGV[at] + 1
  end

  local function has_one(payload, texts)
    for _, text in ipairs(texts) do
      if string.find(payload, text, 1, true) then return true end
    end
    return false
  end

  return function(payload)
    for _, texts in ipairs(parts) do
      if not has_one(payload, texts) then return false end
    end
    return true
  end
end
