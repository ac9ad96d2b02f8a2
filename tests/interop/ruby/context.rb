# frozen_string_literal: true

# An application whose jobs have CurrentAttributes and the locale of their caller: that of a real Sidekiq server
# (`sidekiq -r context.rb`), and what context_client.rb enqueues.
#
# The list `echoes` gets {"by": "ruby", "jid", "locale", "user_id", "tenant", "payload"} for each job that ran.

require "json"
require_relative "quick"
require_relative "payloads"
require "active_support/all"
require "i18n"
require "sidekiq/middleware/i18n"
require "sidekiq/middleware/current_attributes"

I18n.available_locales = %i[en de fr]

class Current < ActiveSupport::CurrentAttributes
  attribute :user_id, :tenant
end

Sidekiq::CurrentAttributes.persist(Current)

class Tell
  include Sidekiq::Worker
  attr_accessor :payload

  def perform(*)
    line = {by: "ruby", jid: jid, locale: I18n.locale, user_id: Current.user_id, tenant: Current.tenant,
            payload: payload}
    Sidekiq.redis { |connection| connection.rpush("echoes", JSON.generate(line)) }
  end
end

# A job of Python's.
class Relay
  include Sidekiq::Worker
end
