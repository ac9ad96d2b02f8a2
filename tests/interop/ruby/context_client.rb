# frozen_string_literal: true

# Enqueues with a caller's attributes and locale.
#
#   {"class": "Relay", "arguments": [], "locale": "de", "attributes": {"user_id": 7}}   → jid

require_relative "lines"
require_relative "context"

answer_lines do |order|
  I18n.with_locale(order["locale"]) do
    Current.set(order["attributes"]) { Object.const_get(order["class"]).perform_async(*order["arguments"]) }
  end
end
